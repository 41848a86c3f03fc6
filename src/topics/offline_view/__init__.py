"""A view of a data directory that no server serves: the records that a server would serve, without a change of any
file.

`view` asks for a view and does not import the engine. `viewer` is the process that makes it, with the recovery of the
engine.
"""
