"""A request from its first chunk to its seal, and how a producer takes it back."""
