"""What a person looks for: requests, workers, queues and failures."""
