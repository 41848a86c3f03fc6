"""The data directory: its folders, its flavour, its version file."""
