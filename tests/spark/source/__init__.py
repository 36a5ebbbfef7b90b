"""Reading with Spark."""
