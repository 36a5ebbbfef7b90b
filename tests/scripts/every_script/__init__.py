"""What holds for every script."""
