"""A view of a data directory that no server serves: what a start would serve, without a start and without a change.

`view` asks for it and imports no engine; `viewer` is the process that makes it, with the recovery of the engine.
"""
