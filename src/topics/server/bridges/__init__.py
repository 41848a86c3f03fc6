"""Bridges between the two engines: routers whose source or dest is a topic of a stream."""
