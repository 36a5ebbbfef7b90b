"""The commands of `fairlane`, one file for each."""
