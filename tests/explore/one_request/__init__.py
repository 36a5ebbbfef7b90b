"""Systems of one request: what its actors do, and what must hold."""
