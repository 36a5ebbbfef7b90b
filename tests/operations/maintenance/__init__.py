"""What keeps a queue whole."""
