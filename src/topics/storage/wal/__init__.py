"""The write-ahead log: shards that are written, and shards that are read back."""
