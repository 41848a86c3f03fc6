"""Names, definitions and copies of routers, as far as they need no log."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.driver import SMALL
from tests.engine.router_driver import RouterDriver
from topics.engine.routers.copying import passes
from topics.engine.routers.definition import check_endpoints, check_router_name, closed_cycle
from topics.engine.topic.router import RouterSpec, key_in, stored_spec
from topics.errors import BadFrame, InvalidRequest, RouterCycle, Throttled, TopicExistsIncompatible, TopicNotFound
from topics.protocol.tag_match import TagMatch


@pytest.mark.parametrize("name", ["a", "src->dst", "0>", "a" * 255, "A.b_c:d-e"])
def test_names_that_are_good(name: str) -> None:
    check_router_name(name)


@pytest.mark.parametrize("name", ["", ">a", "-a", "a b", "a/b", "a" * 256, "ü", "a\n"])
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_router_name(name)


@pytest.mark.parametrize(("source", "dest"), [("a", "a"), ("", "a"), ("a", "a>b"), (".", "b")])
def test_endpoints_are_two_good_topic_names(source: str, dest: str) -> None:
    with pytest.raises(InvalidRequest):
        check_endpoints(RouterSpec(source=source, dest=dest))


def test_a_cycle_is_named_from_source_to_source() -> None:
    assert closed_cycle("a", "b", [("b", "c"), ("b", "d"), ("c", "a")]) == ["a", "b", "c", "a"]
    assert closed_cycle("a", "b", [("b", "a")]) == ["a", "b", "a"]
    assert closed_cycle("a", "b", [("b", "c"), ("c", "b"), ("x", "a")]) is None


nodes = st.integers(0, 7).map(str)


@given(st.lists(st.tuples(nodes, nodes), max_size=20), nodes, nodes)
def test_a_cycle_is_found_exactly_when_dest_leads_back_to_source(
    edges: list[tuple[str, str]], source: str, dest: str
) -> None:
    reached = {dest}
    while more := {head for tail, head in edges if tail in reached} - reached:
        reached |= more
    cycle = closed_cycle(source, dest, edges)
    assert (cycle is not None) == (source in reached)
    if cycle is not None:
        assert (cycle[0], cycle[1], cycle[-1]) == (source, dest, source)
        assert set(pairwise(cycle[1:])) <= set(edges)


@pytest.mark.parametrize(
    ("tag_filter", "tag", "expected"),
    [
        (None, None, True),
        (None, b"x", True),
        (TagMatch("", is_prefix=True), None, False),
        (TagMatch("", is_prefix=True), b"", True),
        (TagMatch("x", is_prefix=True), b"x1", True),
        (TagMatch("x", is_prefix=False), b"x1", False),
        (TagMatch("x", is_prefix=False), b"x", True),
    ],
)
def test_a_filter_never_lets_untagged_records_pass(
    tag_filter: TagMatch | None, tag: bytes | None, expected: bool
) -> None:
    assert passes(tag_filter, tag) is expected


def test_a_definition_that_makes_no_sense_is_a_bad_frame() -> None:
    with pytest.raises(BadFrame):
        stored_spec({"guarantee": "twice"}, "a", "b")


@pytest.mark.parametrize(
    ("envelope", "key"),
    [
        (b'{"d":1}', None),
        (b'{"d":{"_topics_router":{"idempotency_key":"k"}}}', None),
        (b'{"d":1,"m":{"_topics_router":{"idempotency_key":"k"}}}', "k"),
        (b'{"d":1,"m":{"_topics_router":7}}', None),
    ],
)
def test_a_key_is_looked_for_in_the_meta_only(envelope: bytes, key: str | None) -> None:
    assert key_in(envelope) == key


# The graph of an engine.


def test_a_router_that_is_refused_leaves_nothing_behind() -> None:
    driver = RouterDriver()
    driver.route("a", "b")
    driver.route("b", "c")
    with pytest.raises(RouterCycle) as caught:
        driver.route("c", "a")
    assert caught.value.detail == {"cycle": ["c", "a", "b", "c"]}
    with pytest.raises(TopicExistsIncompatible):
        driver.route("new", "b")
    with pytest.raises(TopicExistsIncompatible):
        driver.route("a", "other", name="a->b")
    with pytest.raises(TopicNotFound):
        driver.route("new", "newer", create_dest=False)
    assert set(driver.opened.engine.topics) == {"a", "b", "c"}
    driver.kill()
    assert set(driver.opened.engine.topics) == {"a", "b", "c"}
    assert set(driver.opened.engine.routers) == {"a->b", "b->c"}


def test_a_full_server_creates_neither_topic_of_a_router() -> None:
    driver = RouterDriver(replace(SMALL, topics_max=1))
    with pytest.raises(Throttled) as caught:
        driver.route("a", "b")
    assert caught.value.detail == {"limit": "max_topics", "max": 1}
    assert not driver.opened.engine.topics


def test_a_definition_survives_a_kill_and_a_clean_stop() -> None:
    driver = RouterDriver()
    driver.route(filter="x*", preserve_node=False, guarantee="exactly_once")
    spec = driver.router().spec
    driver.kill()
    assert driver.router().spec == spec
    driver.reopen()
    assert driver.router().spec == spec
    driver.route(preserve_tag=False)
    driver.kill()
    assert driver.router().spec == RouterSpec(source="a", dest="b", preserve_tag=False)
    assert driver.unroute()
    assert not driver.unroute()
    driver.kill()
    assert not driver.opened.engine.routers


def test_routers_that_are_asked_for_at_once_are_made_one_after_the_other() -> None:
    driver = RouterDriver()
    engine = driver.opened.engine
    answers: list[object] = []
    engine.put_router("r1", RouterSpec(source="a", dest="b"), answers.append)
    engine.put_router("r2", RouterSpec(source="b", dest="a"), answers.append)
    engine.put_router("r1", RouterSpec(source="a", dest="b", preserve_tag=False), answers.append)
    engine.delete_router("r1", answers.append)
    for _ in range(5):
        engine.flush()
    created, cycle, again, deleted = answers
    assert (created, again, deleted) == (True, False, True)
    assert isinstance(cycle, RouterCycle)
