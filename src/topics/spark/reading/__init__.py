"""Reading topics on Spark."""
