"""What people do with requests."""
