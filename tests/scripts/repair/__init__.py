"""What finds and repairs damage, and what holds when a command is refused."""
