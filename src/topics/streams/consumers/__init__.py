"""Consumers and consumer groups: stored offsets, group membership, and where a poll begins."""
