"""Names that a key may not see."""

import pytest

from topics.errors import CorruptRecord, Forbidden, InvalidRequest, RouterCycle, TopicNotFound, TopicsError
from topics.server.auth import ALL, FULL_ACCESS, Key
from topics.server.hidden_names import check_topics, error_told

MINE = Key(ALL, ("mine.", "shared."), "mine")


def test_a_topic_outside_of_the_prefixes_is_refused_by_its_name() -> None:
    check_topics(MINE, ("mine.a", "shared.b"))
    check_topics(FULL_ACCESS, ("other",))
    with pytest.raises(Forbidden) as refusal:
        check_topics(MINE, ("mine.a", "other"))
    assert refusal.value.detail == {"topic": "other"}


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no detail"),
        RouterCycle(["mine.a", "shared.b", "mine.a"]),
        CorruptRecord("mine.a", 3, "bad checksum"),
        # These name what the caller sent.
        TopicNotFound("other"),
        Forbidden("not for this name", {"topic": "other"}),
    ],
)
def test_an_error_without_hidden_names_is_told_as_it_is(error: TopicsError) -> None:
    assert error_told(error, MINE) is error


def test_a_key_for_every_name_is_told_every_name() -> None:
    error = RouterCycle(["a", "b", "a"])
    assert error_told(error, FULL_ACCESS) is error
    assert error_told(error, None) is error


def test_hidden_names_are_counted_once_and_left_out_of_detail_and_message() -> None:
    told = error_told(RouterCycle(["mine.a", "other", "another", "other", "mine.a"]), MINE)
    assert (told.status, told.code) == (409, "router_cycle")
    assert told.detail == {"cycle": ["mine.a", "mine.a"], "names_hidden": 2}
    assert "other" not in told.message


def test_an_error_of_a_hidden_topic_keeps_its_code() -> None:
    told = error_told(CorruptRecord("other", 3, "bad checksum"), MINE)
    assert (type(told), told.code, told.status) == (CorruptRecord, "corrupt_record", 500)
    assert told.detail == {"seq": 3, "names_hidden": 1}
    assert told.message == "the request failed at 1 topic that the key may not name: corrupt_record"
