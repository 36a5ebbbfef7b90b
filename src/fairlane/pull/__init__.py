"""The sub-requests that a program takes itself, in the API."""
