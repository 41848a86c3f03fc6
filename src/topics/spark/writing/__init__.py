"""Writing to topics from Spark."""
