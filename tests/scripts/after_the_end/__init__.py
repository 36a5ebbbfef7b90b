"""Scripts of an ended request."""
