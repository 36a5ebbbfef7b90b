"""The recurring work of a queue in the API."""
