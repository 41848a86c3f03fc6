"""Jobs on topics: each has a module with `run(spark, options) -> Report`, and its options in `job_options`."""
