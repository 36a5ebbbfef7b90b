"""The one diagnosis of what holds up a request."""
