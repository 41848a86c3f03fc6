"""Segment files: writing, reading, replacing and moving them."""
