"""Tiers of segments: the store protocols at the bottom, a folder and a bucket above them, addresses at the top."""
