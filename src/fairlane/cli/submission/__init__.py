"""`rq-submit`: reads its input, and submits it as one request or as many."""
