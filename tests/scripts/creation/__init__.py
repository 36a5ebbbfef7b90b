"""Scripts that create a request or add to one."""
