"""The topic of a read: finds it in a directory by name, and makes a manifest of each partition."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from topics.formats.stream_catalog import Catalog, CatalogStream, CatalogTopic
from topics.spark.errors import BadOption
from topics.spark.loss import TopicsDataLoss
from topics.spark.manifest import Manifest
from topics.spark.options import ReadOptions
from topics.spark.streams.directory import KeyPlace, StreamDirectory, directory_path, find_cipher, folder_names
from topics.spark.streams.files import SegmentExtents
from topics.spark.streams.partition_manifest import partition_manifest
from topics.spark.streams.read import Place
from topics.storage.fs import RealFs


def open_directory(options: ReadOptions, environment: Mapping[str, str]) -> StreamDirectory:
    """The directory of the options, with the key that this machine has for it."""
    assert options.path is not None
    fs = RealFs()
    cipher = find_cipher(fs, KeyPlace(options.key_env, options.key_file), environment)
    return StreamDirectory(fs, directory_path(options.path), folder_names(environment), cipher)


class StreamTopic:
    """Reads the directory at every call, and keeps only what cannot change. Not thread-safe."""

    def __init__(self, directory: StreamDirectory, options: ReadOptions) -> None:
        self.directory = directory
        self._options = options
        self._extents = SegmentExtents(directory.fs)
        # Also after the topic is gone.
        self._place: Place | None = None

    @property
    def place(self) -> Place:
        """For tasks. Call `manifests` first."""
        if self._place is None:
            # The topic of the query was deleted before a restart: tasks report gaps, and open no file.
            stream, topic = self._options.stream or "", self._options.topic or ""
            return Place(self.directory.root, stream, topic, -1, -1)
        return self._place

    def manifests(self, *, is_known: bool = False) -> dict[str, Manifest]:
        """By partition. For a query that `is_known`, a topic that is gone has no manifests; else it is an error."""
        catalog = self.directory.catalog()
        stream, topic = self._find(catalog)
        if stream is None or topic is None:
            if is_known:
                return {}
            raise BadOption(self._not_there(catalog, stream))
        self._place = Place(self.directory.root, stream.name, topic.name, stream.id, topic.id)
        wanted = self._options.partitions or range(len(topic.epochs))
        found: dict[str, Manifest] = {}
        for partition in wanted:
            if partition < len(topic.epochs):
                found[str(partition)] = self._manifest(stream.id, topic, partition)
            elif not is_known:
                raise BadOption(
                    f'option `partitions` has {partition}, topic "{topic.name}" has partitions 0 to '
                    f"{len(topic.epochs) - 1}"
                )
        return found

    def _manifest(self, stream_id: int, topic: CatalogTopic, partition: int) -> Manifest:
        path = self.directory.partition_path(stream_id, topic.id, partition)
        epoch = topic.epochs[partition]
        return partition_manifest(partition, topic.id, epoch, path, self._extents.of_partition(path, epoch))

    def _find(self, catalog: Catalog) -> tuple[CatalogStream | None, CatalogTopic | None]:
        """By name. Digits that are no name are an id, as for engine and clients."""
        stream_name, topic_name = self._options.stream, self._options.topic
        assert stream_name is not None
        assert topic_name is not None
        stream = catalog.find(stream_name) or (catalog.find(int(stream_name)) if stream_name.isdecimal() else None)
        if stream is None:
            return None, None
        topic = stream.find(topic_name) or (stream.find(int(topic_name)) if topic_name.isdecimal() else None)
        return stream, topic

    def _not_there(self, catalog: Catalog, stream: CatalogStream | None) -> str:
        options = self._options
        if stream is None:
            names = ", ".join(sorted(stream.name for stream in catalog.streams.values()))
            return f'there is no stream "{options.stream}" in {self.directory.root}; it has {names or "none"}'
        names = ", ".join(sorted(topic.name for topic in stream.topics.values()))
        return f'there is no topic "{options.topic}" in stream "{stream.name}"; it has {names or "none"}'

    @contextmanager
    def named_in_losses(self) -> Iterator[None]:
        """Adds stream and topic to errors of the planner, which knows only the number of a partition."""
        try:
            yield
        except TopicsDataLoss as loss:
            raise loss.within(self.place.label) from None
