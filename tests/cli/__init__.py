"""Tests the command line as a user runs it: a process, its output and its exit code."""
