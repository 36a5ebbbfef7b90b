"""Scripts of a whole queue: workers, schedules, its pause and its rate."""
