"""The file work of a checkpoint, and the process that it runs in."""
