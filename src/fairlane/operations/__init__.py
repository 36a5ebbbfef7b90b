"""What can be done with requests, each written once as a generator without I/O (see steps)."""
