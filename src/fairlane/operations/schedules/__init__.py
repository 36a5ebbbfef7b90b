"""Recurring work: schedules of a queue, and the requests that their ticks submit."""
