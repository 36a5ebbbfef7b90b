"""The API by HTTP for people who operate a queue: what a dashboard shows and changes."""
