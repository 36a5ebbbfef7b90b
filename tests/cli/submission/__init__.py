"""Input of rq-submit."""
