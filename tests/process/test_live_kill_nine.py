"""A real server is killed under live load. The answers to watchers, groups, workers and routers must follow the rules
in `live_judge`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FULL
from tests.process.live_judge import LogJudge, QueueJudge
from tests.process.live_kill_run import LiveKillRun
from tests.process.live_load import (
    AGING,
    CAP_RECORDS,
    CAPPED,
    COPIES,
    COPY_ALL,
    COPY_ERASED,
    COPY_RED,
    ERASED,
    FIRM,
    LOOSE,
    RENEWED,
    SYNCED,
    TTL_MS,
    Deleted,
    Ledger,
    Written,
)
from tests.process.live_queue import Delivery, QueueLedger, Settlement
from tests.process.live_readers import GroupLedger, Seen

KILLS = 30 if FULL else 3
# With fewer writes no write would be interrupted by a kill.
WRITES_MIN = 1000 if FULL else 50


@pytest.mark.timeout(1800 if FULL else 300)
def test_what_all_clients_were_told_holds_together_however_often_the_server_is_killed(tmp_path: Path) -> None:
    findings = LiveKillRun(tmp_path / "data", seed=20_261_116).run(KILLS)
    assert findings.faults[:10] == [], findings.summary()
    assert findings.kills >= KILLS
    # The run did have the events that it is made for.
    assert findings.writes > WRITES_MIN, findings.summary()
    assert findings.reconnects > findings.readers, findings.summary()
    assert findings.tombstones > 0, findings.summary()
    assert min(findings.copied, findings.commits, findings.delivered, findings.acked) > 0, findings.summary()


# Tests of the judge: correct notes, and notes that break one rule each.


def written(payload: str, tag: str | None = None, ended_ns: int = 0, begun_ms: int = 0) -> Written:
    return Written(payload, tag, begun_ms, 0, ended_ns)


def a_ledger() -> Ledger:
    ledger = Ledger()
    ledger.records[SYNCED] = {seq: written(text, "blue") for seq, text in enumerate("abcd", 1)}
    ledger.records[ERASED] = {1: written("a"), 2: written("b", "red", ended_ns=5), 3: written("c")}
    ledger.records[CAPPED] = {seq: written(f"{seq}") for seq in range(1, CAP_RECORDS + 11)}
    ledger.records[AGING] = {1: written("old", begun_ms=1000), 2: written("new", begun_ms=1000 + TTL_MS)}
    ledger.deletes.append(Deleted(begun_ns=10, ended_ns=20))
    ledger.renewed[1] = ["1 0", "1 1", "1 2"]
    ledger.renewed[2] = ["2 0", "2 1", "2 2"]
    return ledger


def seen(topic: str, from_seq: int, to_seq: int, texts: str = "", *seqs: int, **members: Any) -> Seen:
    records = tuple(zip(seqs or range(from_seq + 1, to_seq + 1), texts.split(), strict=True)) if texts else ()
    defaults: dict[str, Any] = {"reason": None, "head_seq": 4, "at_ms": 0, "opened_ns": 0}
    return Seen(topic=topic, from_seq=from_seq, to_seq=to_seq, records=records, **defaults | members)


def gap(topic: str, from_seq: int, to_seq: int, reason: str, **members: Any) -> Seen:
    return seen(topic, from_seq, to_seq, reason=reason, **members)


FULL_CAP = CAP_RECORDS + 10


@pytest.mark.parametrize(
    ("notes", "fault"),
    [
        pytest.param([seen(SYNCED, 0, 2, "a b"), seen(SYNCED, 2, 4, "c d")], "", id="everything, in order"),
        pytest.param([seen(SYNCED, 0, 2, "a b")], "came to 2 of 4", id="the end is missing"),
        pytest.param([seen(SYNCED, 0, 4, "a b d", 1, 2, 4)], "was not given [3]", id="a record is missing"),
        pytest.param([seen(SYNCED, 0, 2, "a b"), seen(SYNCED, 1, 4, "b c d")], "at 2 got [2, 3, 4]", id="twice"),
        pytest.param([seen(SYNCED, 0, 4, "b a c d", 2, 1, 3, 4)], "at 0 got [2, 1, 3, 4]", id="out of order"),
        pytest.param([seen(SYNCED, 0, 4, "a b X d")], "got 'X' as 3, which is 'c'", id="another payload"),
        pytest.param([gap(SYNCED, 0, 4, "cap")], "told of a gap from 1 to 4", id="a gap where nothing can be lost"),
        pytest.param([seen(ERASED, 0, 3, "a c", 1, 3)], "", id="deleted"),
        pytest.param([seen(ERASED, 0, 3, "a b c", opened_ns=15)], "", id="deleted while it is being read"),
        pytest.param([seen(ERASED, 0, 3, "a b c", opened_ns=21)], "was given 2, which", id="deleted and back"),
        pytest.param([seen(ERASED, 0, 3, "b c", 2, 3)], "was not given [1]", id="nobody deleted it"),
        pytest.param([gap(CAPPED, 0, 10, "cap", head_seq=FULL_CAP)], "", id="evicted"),
        pytest.param([gap(CAPPED, 0, 11, "cap", head_seq=FULL_CAP)], "a gap to 11 with", id="evicted too early"),
        pytest.param([gap(CAPPED, 1, 10, "cap", head_seq=FULL_CAP)], "gap from 2 to 10", id="not at the cursor"),
        pytest.param([gap(AGING, 0, 1, "ttl", at_ms=1001 + TTL_MS)], "", id="expired"),
        pytest.param([gap(AGING, 0, 2, "ttl", at_ms=1001 + TTL_MS)], "2 is too old", id="expired too early"),
    ],
)
def test_each_broken_rule_of_a_log_is_found(notes: list[Seen], fault: str) -> None:
    judge = LogJudge(a_ledger(), {topic: [] for topic in COPIES})
    heads = {SYNCED: 4} if notes[0].topic == SYNCED else None
    found = list(judge.faults_of("a reader", notes, heads))
    assert found == [] if not fault else any(fault in text for text in found), found


def test_what_was_answered_and_is_not_there_is_found() -> None:
    judge = LogJudge(a_ledger(), {topic: [] for topic in COPIES})
    assert list(judge.faults_of_newest([seen(SYNCED, 0, 4, "a b c d")], SYNCED, 4)) == []
    assert list(judge.faults_of_newest([seen(SYNCED, 0, 3, "a b c")], SYNCED, 4)) != []


@pytest.mark.parametrize(
    ("copy", "texts", "fault"),
    [
        pytest.param(COPY_ALL, "a b c d", "", id="everything, in order"),
        pytest.param(COPY_ALL, "a b d", "lost ['c']", id="a record is missing"),
        pytest.param(COPY_ALL, "a b b c d", "too many ['b']", id="twice"),
        pytest.param(COPY_ALL, "a c b d", "at place 1", id="out of order"),
        pytest.param(COPY_ERASED, "a b c", "", id="copied before it was deleted"),
        pytest.param(COPY_ERASED, "a", "lost ['c']", id="nobody deleted it"),
        pytest.param(COPY_RED, "a", "too many ['a']", id="it does not pass the filter"),
    ],
)
def test_each_broken_rule_of_a_copy_is_found(copy: str, texts: str, fault: str) -> None:
    whole = dict.fromkeys(COPIES, "a b c d") | {COPY_RED: "", COPY_ERASED: "a c"} | {copy: texts}
    copies = {topic: list(enumerate(text.split(), 1)) for topic, text in whole.items()}
    found = list(LogJudge(a_ledger(), copies).faults_of_copies())
    assert found == [] if not fault else any(fault in text for text in found), found


@pytest.mark.parametrize(
    ("notes", "fault"),
    [
        pytest.param(
            [seen(RENEWED, 0, 1, "1_0"), gap(RENEWED, 0, 1, "recreated"), seen(RENEWED, 0, 1, "2_0")], "", id="told"
        ),
        pytest.param([seen(RENEWED, 0, 1, "1_0"), seen(RENEWED, 1, 3, "2_1 2_2")], "", id="a cursor that fits both"),
        pytest.param([seen(RENEWED, 0, 1, "1_0"), seen(RENEWED, 2, 3, "1_2")], "got 3 of 1", id="a record is missing"),
        pytest.param([seen(RENEWED, 0, 1, "2_0"), seen(RENEWED, 1, 2, "1_1")], "after instance 2", id="back again"),
        pytest.param([seen(RENEWED, 0, 1, "1_1")], "got '1 1' as 1", id="another payload"),
        pytest.param(
            [seen(RENEWED, 0, 1, "1_0"), gap(RENEWED, 0, 1, "recreated"), seen(RENEWED, 0, 1, "1_0")],
            "after instance 1",
            id="told, and still the same",
        ),
    ],
)
def test_each_broken_rule_of_a_topic_that_is_made_anew_is_found(notes: list[Seen], fault: str) -> None:
    spaced = [one._replace(records=tuple((seq, text.replace("_", " ")) for seq, text in one.records)) for one in notes]
    found = list(LogJudge(a_ledger(), {topic: [] for topic in COPIES}).faults_of_renewed("a reader", spaced))
    assert found == [] if not fault else any(fault in text for text in found), found


def delivery(lease_id: int, deliveries: int = 1, queue: str = FIRM, **members: Any) -> Delivery:
    """Lease n is granted at n * 100 and lasts for 90."""
    given = Delivery(
        queue=queue,
        seq=1,
        payload="job",
        lease_id=lease_id,
        deliveries=deliveries,
        granted_ms=lease_id * 100,
        deadline_ms=lease_id * 100 + 90,
        node="w",
        generation=1,
        stream=None,
        ended_ns=lease_id * 100,
    )
    return replace(given, **members)


def ack(lease_id: int, *, acted: bool | None = True, queue: str = FIRM, **members: Any) -> Settlement:
    at = lease_id * 100 + 10
    given = Settlement("ack", queue, 1, lease_id, 1, at, at + 1, at + 1, acted)
    return given._replace(**members)


def letter(seq: int = 1) -> dict[str, Any]:
    return {"data": "job", "meta": {"$dead_letter_from": FIRM, "$dead_letter_src_seq": str(seq)}}


NACK: dict[str, Any] = {"deed": "nack"}
LATER: dict[str, Any] = {"begun_ns": 1000, "ended_ns": 1001, "ended_ms": 1001}


@pytest.mark.parametrize(
    ("deliveries", "settlements", "dead", "fault"),
    [
        pytest.param([delivery(1)], [ack(1)], [], "", id="acked"),
        pytest.param([delivery(1), delivery(2, 2)], [ack(1, acted=False, **LATER), ack(2)], [], "", id="fenced"),
        pytest.param([delivery(1), delivery(2, 2), delivery(3, 3)], [], [letter()], "", id="a dead letter"),
        pytest.param([delivery(1)], [ack(1, acted=None)], [], "", id="acked, maybe"),
        pytest.param([delivery(1), delivery(1, 2)], [ack(1)], [], "was given out for", id="a lease id twice"),
        pytest.param([delivery(1, payload="other")], [ack(1)], [], "'other' was delivered", id="another payload"),
        pytest.param([delivery(1), delivery(2, 2, granted_ms=150)], [ack(2)], [], "before the last one", id="overlap"),
        pytest.param(
            [delivery(1), delivery(2, 2, granted_ms=150)], [ack(1, **NACK), ack(2)], [], "", id="given back, no overlap"
        ),
        pytest.param(
            [delivery(1, stream=7), delivery(2, 2, granted_ms=150)], [ack(2)], [], "", id="hung up, no overlap"
        ),
        pytest.param([delivery(1), delivery(2, 1)], [ack(2)], [], "for the 1. time after 1", id="not counted"),
        pytest.param([delivery(1), delivery(2, 3)], [ack(2)], [], "that no worker got", id="counted twice"),
        pytest.param([delivery(1, 4)], [ack(1)], [], "for the 4. time", id="delivered too often"),
        pytest.param([delivery(1), delivery(2, 2)], [ack(1), ack(2)], [], "was acked 2 times", id="acked twice"),
        pytest.param([delivery(1), delivery(2, 2)], [ack(1)], [], "delivered again", id="delivered after its ack"),
        pytest.param([delivery(1)], [ack(1, acted=False)], [letter()], "an ack was refused", id="a good ack refused"),
        pytest.param(
            [delivery(1)], [ack(1, acted=False, generation=2)], [letter()], "an ack was refused", id="a lease forgotten"
        ),
        pytest.param([delivery(1)], [ack(1)], [letter()], "was acked and is a dead letter", id="both"),
        pytest.param([delivery(1)], [], [letter(), letter()], "is 2 dead letters", id="dead twice"),
        pytest.param([delivery(1)], [], [letter(9)], "of another job", id="a dead letter of nothing"),
        pytest.param([delivery(1)], [], [], "is gone without an ack", id="gone"),
    ],
)
def test_each_broken_rule_of_a_queue_is_found(
    deliveries: list[Delivery], settlements: list[Settlement], dead: list[dict[str, Any]], fault: str
) -> None:
    found = queue_faults(FIRM, deliveries, settlements, dead)
    assert found == [] if not fault else any(fault in text for text in found), found


def test_leases_that_are_not_durable_end_with_their_process() -> None:
    deliveries = [delivery(1, queue=LOOSE), delivery(2, 1, queue=LOOSE, generation=2, granted_ms=150)]
    acks = [ack(1, queue=LOOSE, acted=False, generation=2), ack(2, queue=LOOSE, generation=2)]
    assert queue_faults(LOOSE, deliveries, acks, []) == []
    assert queue_faults(LOOSE, [replace(one, generation=1) for one in deliveries], acks, []) != []


def queue_faults(
    queue: str, deliveries: list[Delivery], settlements: list[Settlement], dead: list[dict[str, Any]]
) -> list[str]:
    ledger = Ledger()
    ledger.records[queue] = {1: written("job")}
    notes = QueueLedger(deliveries=deliveries, settlements=settlements, closed_ns={7: 120})
    return list(QueueJudge(queue, ledger, notes, dead).faults())


def test_each_broken_rule_of_a_group_is_found() -> None:
    group = GroupLedger(SYNCED, "g")
    group.note_page(0, [(1, "a"), (2, "b")])
    group.note_attempt(2)
    group.check_cursor(0, 2)
    group.note_commit(2, 2)
    group.check_cursor(2, 2)
    assert group.faults == []
    group.check_cursor(group.least_seq(), 0)
    group.check_cursor(2, 3)
    group.note_commit(3, 2)
    group.note_page(0, [(3, "c"), (5, "e")])
    group.note_page(0, [(1, "X")])
    assert [fault.partition(": ")[2] for fault in group.faults] == [
        "its cursor is 0, but 2 was answered",
        "its cursor is 3, which no reader committed",
        "a commit of 3 was answered with 2",
        "a page has the seqs [3, 5]",
        "1 is 'X', was 'a'",
    ]
