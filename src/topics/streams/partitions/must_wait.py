"""For callers that must not wait, such as the loop of a server."""


class MustWait(Exception):
    """The call would wait for a lock or a disk, and has changed nothing. Make it on a thread that may wait."""
