"""Looking at a data directory without serving it: verify, repair, dump."""
