"""Streams, topics, groups and users: the state log and the state that its entries make."""
