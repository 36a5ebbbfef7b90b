"""What a queue holds as tables and streams for Spark."""
