"""What is done with a person's own lists: hand-over, forwarding, balance."""
