"""The handler: how it is found, called, and what its calls come to."""
