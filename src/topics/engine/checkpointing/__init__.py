"""From the log into segments, and what happens to segments afterwards."""
