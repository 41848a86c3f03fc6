"""Reading directories of the partitioned engine on Spark."""
