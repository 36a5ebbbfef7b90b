"""`rq-submit`: its input, the request it makes of it, and the format of many requests."""
