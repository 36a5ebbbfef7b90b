"""The queue and its requests as plain Python objects, without Redis."""
