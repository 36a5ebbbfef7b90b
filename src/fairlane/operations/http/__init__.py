"""What only the server of the HTTP API keeps in Redis."""
