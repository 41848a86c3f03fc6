"""The partitioned engine: streams of topics, cut into partitions of segments.

    with topics.streams.open("data") as streams: ...

`Streams` has the methods, `topics.streams.settings` the settings.
"""

try:
    from topics.streams.consumers.polling import PollingStrategy
    from topics.streams.embedded import Streams, restore_archive
    from topics.streams.embedded import open_streams as open  # noqa: A004 - as in `topics.open`
    from topics.streams.partitions.batch import NewMessage
    from topics.streams.partitions.message_view import MessageView, PolledMessages
    from topics.streams.settings.sections import StreamsSettings
except ModuleNotFoundError as error:
    if error.name in ("argon2", "blake3", "numpy"):
        error.add_note("the partitioned engine needs more packages: pip install 'topics-log[streams]'")
    raise

__all__ = [
    "MessageView",
    "NewMessage",
    "PolledMessages",
    "PollingStrategy",
    "Streams",
    "StreamsSettings",
    "open",
    "restore_archive",
]
