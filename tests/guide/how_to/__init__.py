"""The pages on how to use a queue run, block by block."""
