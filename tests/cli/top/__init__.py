"""`fairlane top` in a terminal."""
