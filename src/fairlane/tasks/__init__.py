"""Tasks: functions with typed arguments and results, on top of requests and their bodies."""
