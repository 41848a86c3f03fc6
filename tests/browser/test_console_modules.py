"""Modules of the web console that decide something, called in Chromium: payloads, filters, events, quantiles, text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import skip_without_chromium
from topics.testing.server_process import ServerProcess

skip_without_chromium()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with ServerProcess() as server, browser.new_context() as context:
        page = context.new_page()
        page.goto(server.url)
        yield page


def call(page: Page, module: str, body: str, *arguments: Any) -> Any:
    """Runs the body of a function with the names of a module and `given`, the arguments."""
    return page.evaluate(
        f"async given => {{ const module = await import('/console/core/{module}.js'); {body} }}", list(arguments)
    )


@pytest.mark.parametrize(
    "data",
    [
        "12345678901234567890",
        '{"a":1.0,"b":[1e400,{"c":"}]"}],"10":1,"2":2}',
        r'"quote \" and slash \\"',
        '""',
        "null",
        '[[],{},"",-0]',
        '{ "spaces" : [ 1 , 2 ] }',
        '"ünï ␤ 😀"',
    ],
)
def test_a_payload_is_cut_out_of_an_answer_exactly_as_it_was_written(page: Page, data: str) -> None:
    answer = (
        f'{{"topic":"a","records":[{{"$seq":1,"$ts":5,"$tag":"t","data":{data},"meta":{data}}},'
        f' {{"$seq":2,"$ts":6,"$node":"n","data":{data}}}],"next_from_seq":2}}'
    )
    body = "return module.recordsOf(given[0]).map(r => [r.seq, r.ts, r.tag, r.node, r.dataText, r.metaText])"
    assert call(page, "records", body, answer) == [[1, 5, "t", None, data, data], [2, 6, None, "n", data, None]]


def test_answers_without_records_have_none(page: Page) -> None:
    for answer in ('{"records":[]}', '{"topic":"records"}', "{}"):
        assert call(page, "records", "return module.recordsOf(given[0]).length", answer) == 0


def test_numbers_keep_their_text_through_a_parser(page: Page) -> None:
    body = "return module.textOf(module.parseExact(given[0]))"
    for text in ("12345678901234567890", "[1.0,1e2,0.1]", '{"a":-0}'):
        assert call(page, "exact_json", body, text) == text


@pytest.mark.parametrize(
    ("condition", "data", "is_taken"),
    [
        ("total > 10", {"total": 11}, True),
        ("total > 10", {"total": "11"}, False),
        ("total > 10", {}, False),
        ("a.b[1].c = x y", {"a": {"b": [0, {"c": "x y"}]}}, True),
        ("a != null", {"a": 0}, True),
        ("a = null", {"a": None}, True),
        ("a = [1]", {"a": [1]}, True),
        ('["a b"].c', {"a b": {"c": None}}, True),
        ("$", 7, True),
        ("$ = 7", 7, True),
        ("$ ~ bc", "abcd", True),
        ("constructor", {}, False),
        ("__proto__", {}, False),
        ("n >= 5", {"n": 5}, True),
    ],
)
def test_conditions_take_the_payloads_that_they_describe(page: Page, condition: str, data: Any, is_taken: bool) -> None:
    body = "return module.makeFilter({path: given[0]}).takes({data: given[1], tag: null, node: null})"
    assert call(page, "record_filter", body, condition, data) is is_taken


def test_events_are_the_same_however_the_text_is_split(page: Page) -> None:
    text = 'retry: 2000\n\nid: x\nevent: record\ndata: {"a":1}\n\n: comment\n\nevent: caught-up\ndata: {}\n\nid: unfin'
    body = """
        const parser = new module.EventParser();
        const events = [];
        for (let place = 0; place < given[0].length; place += given[1])
            events.push(...parser.feed(given[0].slice(place, place + given[1])));
        return events.map(event => [event.name, event.id, event.data]);
    """
    for size in (1, 2, 7, len(text)):
        assert call(page, "events", body, text, size) == [["record", "x", '{"a":1}'], ["caught-up", None, "{}"]]


def test_quantiles_lie_in_the_group_that_has_them(page: Page) -> None:
    body = "return module.quantile(given[0], given[1], given[2])"
    assert call(page, "quantiles", body, [100, 200], [10, 0, 0], 0.5) == 50
    assert call(page, "quantiles", body, [100, 200], [1, 99, 0], 0.99) == pytest.approx(199, abs=1)
    assert call(page, "quantiles", body, [100, 200], [0, 0, 5], 0.5) == pytest.approx(300, abs=1)
    assert call(page, "quantiles", body, [100, 200], [0, 0, 0], 0.5) is None


def test_figures_and_names_are_written_for_people(page: Page) -> None:
    for function, value, text in (
        ("bytes", 0, "0 B"),
        ("bytes", 1536, "1.50 KiB"),
        ("bytes", 80 * 2**30, "80.0 GiB"),
        ("span", 0.25, "250 µs"),
        ("span", 90_000, "2 min"),
        ("span", 3 * 86_400_000, "3.0 d"),
        ("rate", 0.44, "0.4"),
        ("rate", 123_456, "123.5K"),
        ("count", 1_234_567, "1,234,567"),
        ("visible", "a\u202eb\u0000\u200bc\n", "a⟨U+202E⟩b⟨U+0000⟩⟨U+200B⟩c\n"),
    ):
        assert call(page, "format", "return module[given[0]](given[1])", function, value) == text
