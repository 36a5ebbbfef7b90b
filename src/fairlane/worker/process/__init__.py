"""The child processes that run the units: started, watched, ended."""
