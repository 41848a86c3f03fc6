"""Clients of the server: `Client` blocks, `AsyncClient` is for asyncio. Both are shells around the same pure parts."""
