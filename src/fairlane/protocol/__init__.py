"""Names for what is stored in Redis: keys, scripts, steps, the fields of requests and permits."""
