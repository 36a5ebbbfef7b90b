"""Options that choose requests, and the change of many of them."""
