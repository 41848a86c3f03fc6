"""The directories that `verify` and `doctor` look at: one of topics, with its streams in it, or one of streams alone.

The settings of streams come from variables `IGGY_…`, as for the engine. This module imports the engines when it is
called, because `--help` must be fast.
"""

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.storage.inspect.doctor import Doctor
    from topics.storage.inspect.findings import Finding
    from topics.storage.inspect.repair_plan import RepairPlan
    from topics.storage.inspect.verify import Verifier
    from topics.storage.tiers.store import SegmentStore
    from topics.streams.inspect.doctor import StreamsDoctor
    from topics.streams.inspect.verify import StreamsVerifier
    from topics.streams.settings import StreamsSettings

Progress = Callable[[int, int], None]


class TopicsPart:
    """The directory that was named."""

    prefix = ""

    def __init__(self, root: str, cold: "SegmentStore | None") -> None:
        self._root = root
        self._cold = cold

    def said(self, text: str) -> str:
        return text

    def verifier(self, progress: Progress | None = None) -> "Verifier":
        from topics.storage.fs import RealFs
        from topics.storage.inspect.verify import Verifier

        return Verifier(RealFs(), self._root, cold=self._cold, progress=progress)

    def doctor(self, progress: Progress) -> "Doctor":
        from topics.storage.fs import RealFs
        from topics.storage.inspect.doctor import Doctor

        fs = RealFs()
        return Doctor(fs, self._root, cold=self._cold, host=fs, progress=progress)

    def repair(self, say: Callable[[str], None], *, accept_loss: bool) -> "RepairPlan":
        from topics.storage.fs import RealFs
        from topics.storage.inspect.repair import repair

        return repair(RealFs(), self._root, cold=self._cold, accept_loss=accept_loss, say=say)


class StreamsPart:
    """`prefix` leads to the directory from the one that was named."""

    def __init__(self, root: str, prefix: str = "") -> None:
        self._root = root
        self.prefix = prefix

    def said(self, text: str) -> str:
        """A sentence about files of this directory, for a reader who named the directory above."""
        return f"in {self.prefix}: {text}" if self.prefix else text

    def verifier(self, progress: Progress | None = None) -> "StreamsVerifier":
        from topics.storage.fs import RealFs
        from topics.streams.inspect.verify import StreamsVerifier

        settings = streams_settings()
        cipher = settings.system.encryption.cipher()
        return StreamsVerifier(RealFs(), self._root, settings=settings, cipher=cipher, progress=progress)

    def doctor(self, progress: Progress) -> "StreamsDoctor":
        from topics.storage.fs import RealFs
        from topics.streams.inspect.doctor import StreamsDoctor

        fs = RealFs()
        return StreamsDoctor(fs, self._root, settings=streams_settings(), host=fs, progress=progress)

    def repair(self, say: Callable[[str], None], *, accept_loss: bool) -> "RepairPlan":
        from topics.storage.fs import RealFs
        from topics.streams.inspect.doctor import repair_streams

        return repair_streams(RealFs(), self._root, settings=streams_settings(), accept_loss=accept_loss, say=say)


def parts_of(root: str, cold: "SegmentStore | None") -> "list[TopicsPart | StreamsPart]":
    from topics.storage.layout import streams_directory

    if _holds_streams(root):
        return [StreamsPart(root)]
    parts: list[TopicsPart | StreamsPart] = [TopicsPart(root, cold)]
    streams = streams_directory(root)
    if _holds_streams(streams):
        parts.append(StreamsPart(streams, streams.removeprefix(root + "/") + "/"))
    return parts


def _holds_streams(root: str) -> bool:
    from topics.storage.layout import streams_state_logs

    return any(os.path.exists(path) for path in streams_state_logs(root))


def streams_settings() -> "StreamsSettings":
    from topics.streams.settings import environment_mapping, from_mapping

    return from_mapping(environment_mapping(os.environ))


def named(findings: "Iterator[Finding]", prefix: str) -> "Iterator[Finding]":
    """The findings with their files as seen from the directory that was named."""
    import msgspec

    for finding in findings:
        yield msgspec.structs.replace(finding, file=prefix + finding.file) if prefix else finding


def dump_rows(path: str, *, with_data: bool) -> Iterator[dict[str, Any]]:
    from topics.storage.fs import RealFs
    from topics.storage.layout import is_streams_file

    if is_streams_file(path):
        from topics.streams.inspect.dump import dump_streams

        cipher = streams_settings().system.encryption.cipher()
        return dump_streams(RealFs(), path, cipher=cipher, with_data=with_data)
    from topics.storage.inspect.dump import dump

    return dump(RealFs(), path, with_data=with_data)
