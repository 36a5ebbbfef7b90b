"""Reading: the views of a queue, and its streams."""
