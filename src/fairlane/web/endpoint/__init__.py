"""What all endpoints share: how a call is admitted, read, answered and refused."""
