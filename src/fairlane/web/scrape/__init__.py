"""GET /metrics: the queue as text for Prometheus."""
