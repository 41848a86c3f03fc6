import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.driver import Driver
from topics.engine.names import INSERTS_MAX, SortedNames, check_topic_name, is_topic_name
from topics.errors import InvalidRequest


@pytest.mark.parametrize("name", ["a", "0", "A.b_c:d-e", "x" * 255])
def test_a_good_name_begins_with_a_letter_or_digit_and_has_at_most_255_bytes(name: str) -> None:
    check_topic_name(name)
    assert is_topic_name(name)


@pytest.mark.parametrize("name", ["", ".x", "a b", "a/b", "a->b", "ä", "a\n", "x" * 256])
def test_any_other_name_is_refused(name: str) -> None:
    assert not is_topic_name(name)
    with pytest.raises(InvalidRequest, match="is not a topic name"):
        check_topic_name(name)


def test_names_stand_in_the_order_of_their_bytes() -> None:
    names = SortedNames(["b", "B", "a-", "a", "a.", "a:"])
    assert names.after("", None, 9) == ["B", "a", "a-", "a.", "a:", "b"]


def test_a_page_begins_behind_a_name_whether_that_exists_or_not() -> None:
    names = SortedNames(["a", "b", "c", "d"])
    assert names.after("", "b", 9) == ["c", "d"]
    assert names.after("", "bb", 9) == ["c", "d"]
    assert names.after("", "d", 9) == []
    assert names.after("", None, 2) == ["a", "b"]
    assert names.after("", None, 0) == []


def test_a_prefix_bounds_the_page_on_both_sides() -> None:
    names = SortedNames(["a", "b", "b.1", "b.2", "c"])
    assert names.after("b", None, 9) == ["b", "b.1", "b.2"]
    assert names.after("b.", "a", 9) == ["b.1", "b.2"]
    assert names.after("b.", "b.1", 9) == ["b.2"]
    assert names.after("b.", "c", 9) == []
    assert names.after("bb", None, 9) == []


some_names = st.lists(st.text("abc", min_size=1, max_size=4), max_size=2 * INSERTS_MAX, unique=True)


@given(
    before=some_names,
    steps=st.lists(st.tuples(some_names, st.integers(0, 5)), max_size=3),
    prefix=st.text("abc", max_size=2),
    after=st.none() | st.text("abc", max_size=3),
    count=st.integers(0, 10),
)
def test_pages_are_those_of_a_full_sort(
    before: list[str], steps: list[tuple[list[str], int]], prefix: str, after: str | None, count: int
) -> None:
    names, known = SortedNames(before), set(before)
    for added, removed_count in steps:
        for name in added:
            if name not in known:
                names.add(name)
                known.add(name)
        for name in sorted(known)[:removed_count]:
            names.remove(name)
            known.discard(name)
        expected = [name for name in sorted(known) if name.startswith(prefix) and (after is None or name > after)]
        assert names.after(prefix, after, count) == expected[:count]


def test_an_engine_lists_what_was_created_and_not_what_was_dropped() -> None:
    driver = Driver()
    engine = driver.opened.engine
    driver.put("b")
    assert engine.names_after("", None, 9) == ["b"]
    driver.put("c")
    driver.append(1, topic="a")
    driver.drop("b")
    assert engine.names_after("", None, 9) == ["a", "c"]
    driver.kill()
    assert driver.opened.engine.names_after("", "a", 9) == ["c"]
