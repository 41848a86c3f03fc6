"""The catalog of a state log has the same streams, topics and partitions as the engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import BadFrame
from topics.formats.state_entry import StateEntry
from topics.formats.stream_catalog import Catalog, catalog_of
from topics.formats.stream_command import (
    Command,
    CreatePartitions,
    CreateStream,
    CreateTopic,
    DeletePartitions,
    DeleteStream,
    DeleteTopic,
    Identifier,
    PurgeStream,
    PurgeTopic,
    UpdateStream,
    UpdateTopic,
)
from topics.stream_errors import StreamsError
from topics.streams.metadata.metadata import Metadata
from topics.streams.settings import StreamsSettings

NAMES = st.sampled_from(("a", "b", "c"))
IDS = st.integers(0, 2)
WHICH = NAMES | IDS
COMMANDS = st.one_of(
    st.builds(CreateStream, IDS, NAMES),
    st.builds(DeleteStream, WHICH),
    st.builds(UpdateStream, WHICH, NAMES),
    st.builds(PurgeStream, WHICH),
    st.builds(
        CreateTopic,
        WHICH,
        IDS,
        st.integers(0, 3),
        st.just(1),
        st.just(0),
        st.just(0),
        st.just(1),
        NAMES,
    ),
    st.builds(DeleteTopic, WHICH, WHICH),
    st.builds(UpdateTopic, WHICH, WHICH, st.just(1), st.just(0), st.just(0), st.just(1), NAMES),
    st.builds(PurgeTopic, WHICH, WHICH),
    st.builds(CreatePartitions, WHICH, WHICH, st.integers(1, 3)),
    st.builds(DeletePartitions, WHICH, WHICH, st.integers(1, 3)),
)


def entries(commands: list[Command]) -> list[StateEntry]:
    return [StateEntry(index, index, 0, command) for index, command in enumerate(commands)]


def topic(name: str = "t", partitions: int = 1, topic_id: int = 0, stream: Identifier = "s") -> CreateTopic:
    return CreateTopic(stream, topic_id, partitions, 1, 0, 0, 1, name)


def epochs(*commands: Command) -> list[int]:
    stream = catalog_of(entries([CreateStream(0, "s"), *commands])).find("s")
    assert stream is not None
    found = stream.find("t")
    assert found is not None
    return found.epochs


@given(st.lists(COMMANDS, max_size=25))
def test_it_is_what_the_engine_has(commands: list[Command]) -> None:
    metadata, catalog = Metadata(StreamsSettings()), Catalog()
    for index, command in enumerate(commands):
        try:
            metadata.check(0, command)
        except StreamsError:
            continue  # An engine writes no such entry.
        metadata.apply(index, 0, command)
        catalog.apply(index, command)
    assert {
        stream.id: (stream.name, {one.id: (one.name, len(one.epochs)) for one in stream.topics.values()})
        for stream in catalog.streams.values()
    } == {
        stream.id: (stream.name, {one.id: (one.name, len(one.partitions)) for one in stream.topics.values()})
        for stream in metadata.streams.values()
    }


def test_an_epoch_is_the_entry_that_made_the_partition_or_emptied_it_last() -> None:
    assert epochs(topic(partitions=2)) == [1, 1]
    assert epochs(topic(partitions=2), CreatePartitions("s", "t", 1)) == [1, 1, 2]
    assert epochs(topic(partitions=2), PurgeTopic("s", "t"), CreatePartitions("s", "t", 1)) == [2, 2, 3]
    assert epochs(topic(partitions=2), PurgeStream(0)) == [2, 2]
    assert epochs(topic(partitions=2), DeletePartitions("s", "t", 1), CreatePartitions("s", "t", 1)) == [1, 3]
    assert epochs(topic(), DeleteTopic("s", "t"), topic()) == [3]
    assert epochs(topic("old"), UpdateTopic("s", "old", 1, 0, 0, 1, "t")) == [1]


def test_names_are_found_before_and_after_a_rename() -> None:
    catalog = catalog_of(entries([CreateStream(3, "s"), topic(), UpdateStream("s", "7")]))
    assert catalog.find("s") is None
    assert catalog.find("7") is catalog.find(3)
    assert catalog.find(7) is None


@pytest.mark.parametrize("command", [DeleteStream("x"), PurgeTopic("s", "x"), CreatePartitions(0, 9, 1)])
def test_an_entry_about_what_is_not_there_is_refused(command: Command) -> None:
    with pytest.raises(BadFrame, match="entry 2 of the state log is about"):
        catalog_of(entries([CreateStream(0, "s"), topic(), command]))
