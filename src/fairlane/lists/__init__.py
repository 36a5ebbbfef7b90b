"""Services over a person's own lists: fan-out, forwarding and balance."""
