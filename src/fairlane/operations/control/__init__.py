"""What people do with requests: watch, wait, change, cancel, requeue dead sub-requests."""
