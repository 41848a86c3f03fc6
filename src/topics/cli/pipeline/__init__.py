"""`topics pipeline`: jobs on Spark, one command for each."""
