"""Finds requests, workers, queues and failures. It only reads, in bounded pages."""
