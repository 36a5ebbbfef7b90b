"""Changes many requests: chooses them, counts them, and changes them in bounded batches."""
