"""Queues: jobs, leases, dead letters."""
