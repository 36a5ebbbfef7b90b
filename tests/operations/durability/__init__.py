"""What a server keeps: replicas, the append-only file, a full memory."""
