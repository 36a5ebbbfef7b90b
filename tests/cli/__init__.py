"""The command line, as a person meets it: a process, its output and its exit code."""
