"""The lake: records of topics as Parquet files."""
