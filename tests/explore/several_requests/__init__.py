"""Systems of several requests, or of a whole queue."""
