"""How requests come into being: many together, or one alone that waits for room."""
