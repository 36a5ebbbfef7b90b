"""Topics: every subscriber gets every message, online or not."""
