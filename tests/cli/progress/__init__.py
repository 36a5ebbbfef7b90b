"""Progress on stderr."""
