"""What people do with requests: watch, wait, change, cancel, requeue the dead."""
