"""The child processes that run the units: starts, watches and ends them."""
