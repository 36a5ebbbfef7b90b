"""`fairlane top`: a queue in a terminal, as it is now."""
