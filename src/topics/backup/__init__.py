"""Backups of a log: what is in one (`format`), where it is (`store`), how it is taken (`source`, `taking`), checked
(`checking`) and restored (`restoring`)."""
