"""Scripts that lease sub-requests, settle them, and take them back."""
