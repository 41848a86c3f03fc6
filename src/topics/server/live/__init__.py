"""Pushing records to clients that stay connected."""
