"""The load: what goes in, the handlers, and the threads that wait for results."""
