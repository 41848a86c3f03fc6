"""From a data directory to an engine that serves."""
