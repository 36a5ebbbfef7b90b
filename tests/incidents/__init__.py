"""Sets up what happens at night, for real, and closes each case by the commands of the page."""
