"""Routers: which there are, and how records are copied."""
