"""Units, step by step."""
