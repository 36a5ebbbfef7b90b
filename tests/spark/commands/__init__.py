"""`fairlane spark`."""
