"""What stands in Redis, by name: keys, scripts, steps, the fields of a request and of a permit."""
