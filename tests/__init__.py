"""The tests: a package, so that they share their support."""
