"""Where steps go, without I/O: slots, nodes, and a batch that goes to several of them."""
