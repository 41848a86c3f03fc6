"""Commands that ask a server: topics, records, queues, routers, groups, contexts, checks."""
