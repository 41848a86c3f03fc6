"""The open topics of a data directory, and the commands that work on them."""
