"""Scripts that announce requests in lanes."""
