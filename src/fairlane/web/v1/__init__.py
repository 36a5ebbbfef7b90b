"""The API by HTTP, version 1: requests, what programs take, and endings."""
