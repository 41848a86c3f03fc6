from hypothesis import given
from hypothesis import strategies as st

from topics.engine.topic.tag_index import TagIndex


def index_of(*tags: bytes | None) -> TagIndex:
    index = TagIndex()
    for seq, tag in enumerate(tags, 1):
        if tag is not None:
            index.add(tag, seq)
    return index


def test_a_tag_is_found_exactly_and_by_prefix() -> None:
    index = index_of(b"a", b"ab", None, b"a", b"b", b"")
    assert index.seqs(b"a") == [1, 4]
    assert index.seqs(b"c") == []
    assert index.seqs_by_prefix(b"a") == [1, 2, 4]
    assert index.seqs_by_prefix(b"") == [1, 2, 4, 5, 6]
    assert index.seqs(b"") == [6]
    assert len(index) == 4


def test_a_prefix_ends_at_the_highest_byte() -> None:
    index = index_of(b"a\xff", b"a\xff\xff", b"b", b"\xff")
    assert index.seqs_by_prefix(b"a\xff") == [1, 2]
    assert index.seqs_by_prefix(b"\xff") == [4]


def test_a_tag_added_later_is_seen_by_a_scan() -> None:
    index = index_of(b"x1")
    assert index.seqs_by_prefix(b"x") == [1]
    index.add(b"x0", 2)
    assert index.seqs_by_prefix(b"x") == [1, 2]


def test_forgotten_seqs_take_their_tags_along() -> None:
    index = index_of(b"a", b"b", b"a", b"c")
    index.forget_below(3)
    assert (index.seqs(b"a"), index.seqs(b"b"), index.seqs_by_prefix(b"")) == ([3], [], [3, 4])
    assert len(index) == 2
    index.forget_below(100)
    assert len(index) == 0


def test_an_index_of_later_seqs_is_merged_behind() -> None:
    earlier, later = index_of(b"a", b"b"), TagIndex()
    later.add(b"b", 7)
    later.add(b"c", 8)
    earlier.merge(later)
    assert (earlier.seqs(b"b"), earlier.seqs_by_prefix(b"")) == ([2, 7], [1, 2, 7, 8])


@given(
    st.lists(st.sampled_from([b"", b"a", b"ab", b"abc", b"b"])), st.integers(0, 20), st.sampled_from([b"", b"a", b"ab"])
)
def test_the_index_agrees_with_a_scan(tags: list[bytes], below: int, prefix: bytes) -> None:
    index = index_of(*tags)
    index.seqs_by_prefix(prefix)
    index.forget_below(below)
    kept = [(seq, tag) for seq, tag in enumerate(tags, 1) if seq >= below]
    assert index.seqs_by_prefix(prefix) == [seq for seq, tag in kept if tag.startswith(prefix)]
    assert index.seqs(prefix) == [seq for seq, tag in kept if tag == prefix]
