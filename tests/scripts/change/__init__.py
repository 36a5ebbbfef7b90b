"""Scripts that change a running request."""
