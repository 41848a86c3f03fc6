"""Jobs on topics: each module has a `Config` and `run(spark, config) -> Report`, and is `topics pipeline JOB`."""
