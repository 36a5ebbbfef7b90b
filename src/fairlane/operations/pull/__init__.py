"""Takes and settles sub-requests for programs that are not handlers."""
