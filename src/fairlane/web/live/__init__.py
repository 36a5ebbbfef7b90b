"""The queue as it is now: one stream for all who watch it, and the doctor's findings."""
