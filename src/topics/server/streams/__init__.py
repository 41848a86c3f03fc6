"""Streams for clients of Apache Iggy: the engine inside of the server, and its port."""
