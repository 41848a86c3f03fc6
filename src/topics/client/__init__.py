"""A client of the server: synchronous, typed, with the retries that its answers ask for."""

from topics.client.client import Client, Frames, FramesGap, PartOfEpoch
from topics.client.transport import Unreachable

__all__ = ["Client", "Frames", "FramesGap", "PartOfEpoch", "Unreachable"]
