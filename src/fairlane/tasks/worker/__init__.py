"""The worker's side of tasks: the handler that calls them, and the workers of several apps."""
