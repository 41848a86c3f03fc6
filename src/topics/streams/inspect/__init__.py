"""Looking at a data directory without the engine: verify, doctor, dump."""
