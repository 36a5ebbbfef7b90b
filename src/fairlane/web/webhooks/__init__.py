"""Posts the endings of requests to webhooks."""
