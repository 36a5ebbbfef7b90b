"""What the leading worker does for the whole queue."""
