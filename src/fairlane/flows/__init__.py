"""The runs of flows in the API."""
