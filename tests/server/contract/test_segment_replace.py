"""`POST /v0/admin/segments/replace`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.offers import rewritten
from tests.server.clients import Client
from tests.server.openapi_document import ask
from tests.server.running import Running, running
from topics.protocol.response_body import SegmentReplaced

PATH = "/v0/admin/segments/replace"
SEGMENT_EVENTS = 10


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replaced")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Running]:
    """A server with small segments, so that a few records seal one."""
    with running(directory, segment_max_events=SEGMENT_EVENTS) as running_server:
        yield running_server


async def checkpointed(server: Running) -> None:
    opened = server.server.app.opened
    assert opened is not None
    done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    opened.checkpointer.start(done.set_result)
    assert await done is None


def fill(server: Running, client: Client, topic: str) -> None:
    """A sealed segment whose even records are marked as deleted, and two later records.

    The even ones are less than half of its bytes: else a checkpoint would write the segment again.
    """
    records = [{"data": seq, "tag": "e" if seq % 2 == 0 else "odd"} for seq in range(1, SEGMENT_EVENTS + 1)]
    client.request("POST", f"/v0/topics/{topic}", {"records": records})
    client.write(topic, "behind", "it")
    server.call(checkpointed(server))
    client.request("POST", f"/v0/topics/{topic}/delete", {"match": "e"})
    server.call(checkpointed(server))


def manifest(client: Client, topic: str, **members: Any) -> Any:
    return client.request("POST", f"/v0/topics/{topic}/manifest", members).json


def offer(directory: Path, picture: Any) -> dict[str, Any]:
    """Puts the first segment into `staging`, without deleted records, except for its last record."""
    segment = picture["segments"][0]
    data, index = rewritten(
        Path(segment["uri"].removeprefix("file://")).read_bytes(),
        segment["first_seq"],
        segment["records"],
        lambda frame: not frame.deleted or frame.seq == segment["last_seq"],
    )
    staging = directory / "staging"
    staging.mkdir(exist_ok=True)
    names = [f"{picture['topic']}.{kind}" for kind in ("data", "idx")]
    for name, content in zip(names, (data, index), strict=True):
        (staging / name).write_bytes(content)
    return {
        "topic_id": picture["topic_id"],
        "epoch": picture["epoch"],
        "first_seq": segment["first_seq"],
        "expect_digest": segment["digest"],
        "data": names[0],
        "idx": names[1],
    }


@pytest.fixture
def body(server: Running, directory: Path, client: Client, topic: str) -> dict[str, Any]:
    fill(server, client, topic)
    return offer(directory, manifest(client, topic))


def test_a_segment_is_replaced_and_readers_see_the_same(
    client: Client, topic: str, directory: Path, body: dict[str, Any]
) -> None:
    before = client.datas(topic)
    old = manifest(client, topic)["segments"][0]
    answer = client.request("POST", PATH, body)
    assert answer.status == 200, answer.body
    assert msgspec.json.encode(msgspec.json.decode(answer.body, type=SegmentReplaced)) == answer.body
    new = manifest(client, topic)["segments"][0]
    assert (
        answer.json.items()
        >= {
            "topic": topic,
            "first_seq": 1,
            "last_seq": SEGMENT_EVENTS,
            "removed": SEGMENT_EVENTS // 2 - 1,
            "data_len": new["data_len"],
            "digest": new["digest"],
        }.items()
    )
    assert new["digest"] != old["digest"]
    assert new["proof"] != old["proof"]
    assert new["data_len"] < old["data_len"]
    assert {**new, "digest": "", "proof": "", "data_len": 0} == {**old, "digest": "", "proof": "", "data_len": 0}
    assert client.datas(topic) == before == [1, 3, 5, 7, 9, "behind", "it"]
    assert not (directory / "staging" / body["data"]).exists()
    assert not (directory / "staging" / body["idx"]).exists()


def test_a_digest_that_moved_is_a_conflict_and_the_present_one_is_told(
    client: Client, topic: str, body: dict[str, Any]
) -> None:
    digest = client.request("POST", PATH, body).json["digest"]
    again = client.request("POST", PATH, body)
    assert again.refusal == (409, "segment_changed")
    assert again.error["detail"] == {"digest": digest}


def test_a_pinned_segment_is_busy(client: Client, topic: str, body: dict[str, Any]) -> None:
    manifest(client, topic, pin_ms=60_000)
    assert client.request("POST", PATH, body).refusal == (409, "segment_busy")


@pytest.mark.parametrize(
    ("members", "refusal"),
    [
        ({"topic_id": 999_999}, (404, "topic_not_found")),
        ({"epoch": 999}, (404, "topic_not_found")),
        ({"first_seq": 2}, (409, "segment_changed")),
        ({"first_seq": SEGMENT_EVENTS + 1}, (409, "segment_changed")),
        ({"expect_digest": "0" * 32}, (409, "segment_changed")),
        ({"expect_digest": "0" * 31}, (400, "invalid_request")),
        ({"expect_digest": "0" * 30 + " 0"}, (400, "invalid_request")),
        ({"expect_digest": "x" * 32}, (400, "invalid_request")),
        ({"data": "nowhere.data"}, (404, "not_found")),
        ({"idx": "nowhere.idx"}, (404, "not_found")),
        ({"data": "../STORE"}, (400, "invalid_request")),
        ({"data": "/etc/passwd"}, (400, "invalid_request")),
        ({"idx": ".."}, (400, "invalid_request")),
        ({"idx": ""}, (400, "invalid_request")),
        ({"topic_id": -1}, (400, "invalid_request")),
        ({"first_seq": "1"}, (400, "invalid_request")),
        ({"data": None}, (400, "invalid_request")),
    ],
)
def test_what_cannot_be_meant_is_refused_and_changes_nothing(
    client: Client, topic: str, body: dict[str, Any], members: dict[str, Any], refusal: tuple[int, str]
) -> None:
    before = manifest(client, topic)["segments"]
    assert client.request("POST", PATH, body | members).refusal == refusal
    assert manifest(client, topic)["segments"] == before
    assert client.request("POST", PATH, body).status == 200


@pytest.mark.parametrize("missing", ["topic_id", "epoch", "first_seq", "expect_digest", "data", "idx"])
def test_every_member_is_needed(client: Client, missing: str) -> None:
    whole = {"topic_id": 1, "epoch": 1, "first_seq": 1, "expect_digest": "0" * 32, "data": "a", "idx": "b"}
    del whole[missing]
    answer = client.request("POST", PATH, whole)
    assert answer.refusal == (400, "invalid_request")
    assert missing in answer.error["message"]


def test_a_folder_is_no_file(client: Client, directory: Path, body: dict[str, Any]) -> None:
    (directory / "staging" / "folder").mkdir(parents=True, exist_ok=True)
    assert client.request("POST", PATH, body | {"data": "folder"}).refusal == (400, "invalid_request")


def test_a_record_that_is_not_deleted_cannot_be_left_out(
    client: Client, topic: str, directory: Path, body: dict[str, Any]
) -> None:
    segment = manifest(client, topic)["segments"][0]
    old = Path(segment["uri"].removeprefix("file://")).read_bytes()
    data, index = rewritten(old, 1, segment["records"], lambda frame: frame.seq != 1)
    (directory / "staging" / body["data"]).write_bytes(data)
    (directory / "staging" / body["idx"]).write_bytes(index)
    answer = client.request("POST", PATH, body)
    assert answer.refusal == (400, "invalid_request")
    assert "seq 1 " in answer.error["message"]


def test_the_feature_is_announced(client: Client) -> None:
    assert "replace" in client.request("GET", "/v0/health").json["features"]


def test_the_key_needs_the_scope_and_must_be_for_the_topic(tmp_path: Path) -> None:
    keys = "all:admin+read+write,reader:read+write+delete,other:admin:other."
    with running(tmp_path, keys=keys, segment_max_events=SEGMENT_EVENTS) as server:

        def as_key(name: str, method: str, path: str, body: Any) -> Any:
            return ask(server, method, path, body, {"authorization": f"Bearer {name}"})

        records = [{"data": seq} for seq in range(SEGMENT_EVENTS)]
        as_key("all", "POST", "/v0/topics/mine", {"records": records})
        server.call(checkpointed(server))
        body = offer(tmp_path, as_key("all", "POST", "/v0/topics/mine/manifest", {}).json)
        assert as_key("reader", "POST", PATH, body).refusal == (403, "forbidden")
        assert as_key("other", "POST", PATH, body).refusal == (403, "forbidden")
        assert as_key("all", "POST", PATH, body).json["removed"] == 0


def test_a_start_reads_what_was_replaced(tmp_path: Path) -> None:
    settings = {"segment_max_events": SEGMENT_EVENTS}
    with running(tmp_path, **settings) as server:
        with_tag = [{"data": seq, "tag": "t" if seq % 2 else "kept"} for seq in range(1, 3 * SEGMENT_EVENTS + 1)]
        ask(server, "POST", "/v0/topics/a", {"records": with_tag})
        server.call(checkpointed(server))
        ask(server, "POST", "/v0/topics/a/delete", {"match": "t"})
        server.call(checkpointed(server))
        picture = ask(server, "POST", "/v0/topics/a/manifest", {}).json
        assert ask(server, "POST", PATH, offer(tmp_path, picture)).json["removed"] == SEGMENT_EVENTS // 2
        before = ask(server, "POST", "/v0/topics/a/diff", {}).json["records"]
    with running(tmp_path, **settings) as server:
        assert ask(server, "POST", "/v0/topics/a/diff", {}).json["records"] == before
    assert [record["data"] for record in before] == list(range(2, 3 * SEGMENT_EVENTS + 1, 2))
