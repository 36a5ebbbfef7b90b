"""What is wrong with a server, a queue or a request, and its repair."""
