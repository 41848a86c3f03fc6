"""Redrive, the state of a queue, and the reason of a nack, over both protocols."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.clients import CLIENTS, HTTP1, Answer, Client
from tests.server.running import Running, running

REASON = 'no such "customer"'


def post(client: Client, topic: str, action: str, body: Any = None, headers: Any = None) -> Answer:
    return client.request("POST", f"/v0/topics/{topic}/{action}", {} if body is None else body, headers)


def kill_jobs(client: Client, queue: str, **nack: Any) -> None:
    """Every ready job of the queue becomes a dead letter."""
    while jobs := post(client, queue, "claim", {"node": "w", "max": 100}).json["claimed"]:
        post(client, queue, "nack", {"node": "w", "seqs": [job["$seq"] for job in jobs]} | nack)
        post(client, queue, "claim", {"node": "other", "max": 1})


def meta_of(client: Client, topic: str, place: int = -1) -> Any:
    return client.diff(topic)["records"][place]["meta"]


@pytest.fixture
def queue(client: Client, topic: str) -> str:
    """A queue with two dead letters, tagged `a` and `b`."""
    client.put_topic(topic, type="queue", max_deliveries=1, dead_letter=f"{topic}.dead")
    client.write(topic, records=[{"data": 1, "tag": "a", "meta": {"mine": 1}}, {"data": 2, "tag": "b"}])
    kill_jobs(client, topic, reason=REASON)
    return topic


def test_dead_letters_come_back_with_their_origin(client: Client, queue: str) -> None:
    assert meta_of(client, f"{queue}.dead", 0) == {
        "mine": 1,
        "$dead_letter_from": queue,
        "$dead_letter_deliveries": "1",
        "$dead_letter_src_seq": "1",
        "$dead_letter_reason": REASON,
    }
    answer = post(client, queue, "redrive").json
    assert answer == {
        "topic": queue,
        "source": f"{queue}.dead",
        "dest": queue,
        "moved": 2,
        "matched": 2,
        "skipped": 0,
        "next_from_seq": 2,
        "until_seq": 2,
        "remaining": 0,
        "stopped": "end",
        "dry_run": False,
        "jobs": [],
        "performance": answer["performance"],
    }
    assert client.datas(queue) == [1, 2]
    assert client.datas(f"{queue}.dead") == []
    origin = {"$redrive_from": f"{queue}.dead", "$redrive_src_seq": "1", "$redrive_count": "1"}
    assert meta_of(client, queue, 0) == {"mine": 1} | origin
    assert post(client, queue, "claim", {"node": "w"}).json["claimed"][0]["deliveries"] == 1


def test_the_log_of_the_server_says_what_was_moved_and_with_which_key(
    client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "topics.server.api.redrive")
    post(client, queue, "redrive", {"dry_run": True})
    post(client, queue, "redrive")
    (line,) = [each for each in caplog.records if each.message == "jobs were redriven"]
    assert line.__dict__["fields"] == {
        "queue": queue,
        "source": f"{queue}.dead",
        "dest": queue,
        "moved": 2,
        "stopped": "end",
        "key": "no-auth",
    }


def test_an_empty_body_means_everything(client: Client, queue: str) -> None:
    assert client.request("POST", f"/v0/topics/{queue}/redrive").json["moved"] == 2


def test_a_dry_run_counts_and_shows(client: Client, queue: str) -> None:
    answer = post(client, queue, "redrive", {"dry_run": True, "match": ["tag", "Eq", "b"]}).json
    assert (answer["moved"], answer["matched"], answer["dry_run"]) == (0, 1, True)
    (job,) = answer["jobs"]
    assert (job["$seq"], job["$tag"], job["data"]) == (2, "b", 2)
    assert len(client.datas(f"{queue}.dead")) == 2


def test_jobs_go_to_another_queue_and_pages_follow_each_other(client: Client, queue: str, topic: str) -> None:
    client.put_topic(f"{topic}.2", type="queue")
    client.write(queue, *range(4))
    post(client, queue, "claim", {"node": "w"})
    first = post(client, queue, "redrive", {"to": f"{topic}.2", "limit": 1}).json
    assert (first["moved"], first["skipped"], first["stopped"], first["remaining"]) == (1, 1, "limit", 2)
    rest = {"to": f"{topic}.2", "from_seq": first["next_from_seq"], "until_seq": first["until_seq"], "rate": 10_000}
    second = post(client, queue, "redrive", rest).json
    assert (second["moved"], second["stopped"], second["remaining"]) == (2, "end", 0)
    assert (client.datas(queue), client.datas(f"{topic}.2")) == ([0], [1, 2, 3])


def test_a_repeat_under_the_same_key_moves_nothing_more(client: Client, queue: str) -> None:
    for _ in range(2):
        answer = post(client, queue, "redrive", {"limit": 1}, {"idempotency-key": "k"}).json
        assert (answer["moved"], answer["stopped"]) == (1, "limit")
    assert client.datas(queue) == [1]
    assert post(client, queue, "redrive", {"limit": 2, "idempotency_key": "k"}).json["moved"] == 2


def test_misspelt_members_are_named(client: Client, queue: str) -> None:
    answer = post(client, queue, "redrive", {"dry_run": True, "mtach": "a"}).json
    assert answer["warnings"] == ['"mtach" is not known, and was ignored: did you mean match?']


@pytest.mark.parametrize(
    "body",
    [
        {"limit": -1},
        {"rate": "1"},
        {"rate": 2**32},
        {"match": ["tag", "eq", "a"]},
        {"dry_run": 1},
        {"from_ts": None},
        {"idempotency_key": "k" * 201},
        {"to": 7},
        [],
    ],
)
def test_bad_members_are_refused(client: Client, queue: str, body: Any) -> None:
    assert post(client, queue, "redrive", body).refusal == (400, "invalid_request")
    assert len(client.datas(f"{queue}.dead")) == 2


def test_what_cannot_be_redriven_is_refused(client: Client, queue: str, topic: str) -> None:
    client.put_topic(f"{topic}.log")
    client.put_topic(f"{topic}.plain", type="queue")
    client.put_topic(f"{topic}.full", type="queue", discard="reject", cap_records=1)
    client.write(f"{topic}.full", 0)
    assert post(client, "nowhere", "redrive").refusal == (404, "topic_not_found")
    assert post(client, queue, "redrive", {"to": "nowhere"}).refusal == (404, "topic_not_found")
    assert post(client, f"{topic}.log", "redrive").refusal == (409, "not_a_queue")
    assert post(client, queue, "redrive", {"to": f"{topic}.log"}).refusal == (409, "not_a_queue")
    assert post(client, queue, "redrive", {"to": queue}).refusal == (400, "invalid_request")
    refused = post(client, f"{topic}.plain", "redrive")
    assert refused.refusal == (409, "no_dead_letter")
    assert "set one, or name the queue that its jobs go to in `to`" in refused.error["message"]
    full = post(client, f"{queue}.dead", "redrive", {"to": f"{topic}.full"})
    assert full.refusal == (422, "topic_full")
    assert "let workers drain it, or raise its cap" in full.error["message"]


def test_a_redrive_needs_all_three_scopes_and_both_names(tmp_path: Path) -> None:
    keys = "all,rw:rw,rd:read+delete,wd:write+delete,rwd:rw+delete:jobs,mine::mine."
    with running(tmp_path, keys=keys) as server, CLIENTS[HTTP1](server.host, server.port) as client:

        def as_key(key: str, topic: str, body: Any) -> Answer:
            return post(client, topic, "redrive", body, {"authorization": f"Bearer {key}"})

        config = {"type": "queue", "max_deliveries": 1, "dead_letter": "jobs.dead"}
        for name in ("jobs", "mine.jobs"):
            client.request("PUT", f"/v0/topics/{name}", config, {"authorization": "Bearer all"})
        for key in ("rw", "rd", "wd"):
            assert as_key(key, "jobs", {}).refusal == (403, "forbidden"), key
        assert as_key("rwd", "jobs", {}).status == 200
        assert as_key("rwd", "jobs", {"to": "mine.jobs"}).error["detail"] == {"topic": "mine.jobs"}
        refused = as_key("mine", "mine.jobs", {})
        assert refused.refusal == (403, "forbidden")
        assert "jobs.dead" not in refused.body.decode()


# The state of a queue.


def test_the_state_of_a_queue_shows_depths_ages_and_leases(client: Client, queue: str) -> None:
    client.write(queue, *range(5))
    jobs = post(client, queue, "claim", {"node": "w-1", "max": 3}).json["claimed"]
    post(client, queue, "nack", {"node": "w-1", "seqs": [jobs[0]["$seq"]], "delay_ms": 60_000})
    state = client.request("GET", f"/v0/topics/{queue}/queue?page_size=1").json
    age_ms = state.pop("oldest_ready_age_ms")
    assert 0 <= age_ms < 60_000
    cursor = state.pop("next_cursor")
    lease = {name: jobs[1][name] for name in ("$seq", "lease_id", "deadline", "deliveries")} | {"node": "w-1"}
    assert state == {
        "topic": queue,
        "ready": 2,
        "in_flight": 2,
        "delayed": 1,
        "dead_lettered": 2,
        "dead": 2,
        "dead_letter": f"{queue}.dead",
        "leases": [lease],
        "performance": state["performance"],
    }
    last = client.request("GET", f"/v0/topics/{queue}/queue?cursor={cursor}").json
    assert [entry["$seq"] for entry in last["leases"]] == [jobs[2]["$seq"]]
    assert "next_cursor" not in last


def test_the_state_of_an_idle_queue_has_no_age(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    state = client.request("GET", f"/v0/topics/{topic}/queue").json
    assert [state[name] for name in ("ready", "oldest_ready_age_ms", "dead", "dead_letter", "leases")] == [
        0,
        None,
        None,
        None,
        [],
    ]


def test_only_queues_have_such_a_state(client: Client, topic: str) -> None:
    client.put_topic(topic)
    assert client.request("GET", f"/v0/topics/{topic}/queue").refusal == (409, "not_a_queue")
    assert client.request("GET", "/v0/topics/nowhere/queue").refusal == (404, "topic_not_found")
    client.put_topic(f"{topic}.q", type="queue")
    assert client.request("GET", f"/v0/topics/{topic}.q/queue?cursor=x").refusal == (400, "invalid_request")
    cursor = "eyJhZnRlciI6ICJhIn0="
    assert client.request("GET", f"/v0/topics/{topic}.q/queue?cursor={cursor}").refusal == (400, "invalid_request")


def test_the_list_of_topics_has_depths_and_lags(client: Client, queue: str, topic: str) -> None:
    client.write(queue, 1, 2)
    client.put_topic(f"{topic}.log")
    client.write(f"{topic}.log", 1, 2, 3)
    for group, seq in (("a", 1), ("b", 3)):
        client.request("PUT", f"/v0/topics/{topic}.log/groups/{group}", {"seq": seq})
    entries = {
        entry["topic"]: entry
        for entry in client.request("GET", f"/v0/topics?prefix={topic}&page_size=1000").json["topics"]
    }
    counts = entries[queue]["queue"]
    assert (counts["ready"], counts["in_flight"], counts["delayed"], counts["dead_lettered"]) == (2, 0, 0, 2)
    assert counts["dead"] == 2
    assert 0 <= counts["oldest_ready_age_ms"] < 60_000
    assert entries[queue]["type"] == "queue"
    assert entries[f"{topic}.log"]["groups"] == {"count": 2, "lag_max": 2}
    assert "queue" not in entries[f"{topic}.log"]
    assert "groups" not in entries[queue]


def test_a_reason_is_bounded(client: Client, queue: str) -> None:
    client.write(queue, 1)
    job = post(client, queue, "claim", {"node": "w"}).json["claimed"][0]
    body = {"node": "w", "seqs": [job["$seq"]]}
    assert post(client, queue, "nack", body | {"reason": "x" * 1025}).refusal == (400, "invalid_request")
    assert post(client, queue, "nack", body | {"reason": None}).refusal == (400, "invalid_request")
    assert post(client, queue, "nack", body | {"reason": "x" * 1024}).json["nacked"] == 1


def test_a_client_that_goes_away_stops_its_redrive(server: Running, topic: str) -> None:
    with CLIENTS[HTTP1](server.host, server.port) as client:
        client.put_topic(topic, type="queue")
        client.put_topic(f"{topic}.2", type="queue")
        client.write(topic, *range(50))
        with CLIENTS[HTTP1](server.host, server.port) as leaving:
            leaving.start("POST", f"/v0/topics/{topic}/redrive", {"to": f"{topic}.2", "rate": 2})
            while client.state(f"{topic}.2")["count"] == 0:
                pass
        while server.server.app.waiting:
            client.state(topic)
        moved = client.state(f"{topic}.2")["count"]
        assert moved < 50
        assert client.state(topic)["count"] + moved == 50
