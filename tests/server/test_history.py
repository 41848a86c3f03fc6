"""Many clients at once against a real server process: every history obeys the rules of the log."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import FULL, SEED
from tests.server.clients import CLIENTS
from tests.server.history import LAST_READER, Erased, History, Operation, Read, Wrote
from tests.server.history_load import run_load
from topics.testing.server_process import ServerProcess

SEEDS = range(SEED, SEED + (10 if FULL else 2))
OPERATIONS = 300 if FULL else 120


@pytest.fixture(scope="module")
def process() -> Iterator[ServerProcess]:
    with ServerProcess(wal_shards=2, segment_max_events=100) as server:
        yield server


@pytest.mark.timeout(900 if FULL else 300)
@pytest.mark.parametrize("seed", SEEDS)
def test_concurrent_clients_see_one_log(process: ServerProcess, protocol: str, seed: int) -> None:
    """The log's invariants 1 to 7, under writes, long polls, random cursors, deletes and a cap."""
    with ExitStack() as clients:
        history = run_load(
            lambda: clients.enter_context(CLIENTS[protocol](process.host, process.port)),
            seed,
            OPERATIONS,
            prefix=f"{protocol.partition('/')[0]}-{seed}-",
        )
    faults = history.faults()
    assert not faults, f"seed {seed}: " + "\n".join(faults)
    # The load has done what it is for.
    assert any(isinstance(operation, Wrote) and operation.deduped for operation in history.operations)
    assert any(isinstance(operation, Read) and operation.gap for operation in history.operations)
    assert any(isinstance(operation, Erased) and operation.deleted for operation in history.operations)


# The judge is tested: a history without faults, and each rule broken once.


def wrote(first_seq: int, begun: int, ended: int, **members: Any) -> Wrote:
    payloads = members.pop("payloads", (f"p{first_seq}",))
    seqs = members.pop("seqs", tuple(range(first_seq, first_seq + len(payloads))))
    return Wrote(topic="t", client="w", begun_ns=begun, ended_ns=ended, payloads=payloads, seqs=seqs, **members)


def read(begun: int, ended: int, *records: tuple[int, str, str | None], **members: Any) -> Read:
    last = max((seq for seq, _, _ in records), default=0)
    head_seq = members.pop("head_seq", last)
    next_from_seq = members.pop("next_from_seq", head_seq)
    return Read(
        topic="t",
        client=members.pop("client", "r"),
        begun_ns=begun,
        ended_ns=ended,
        from_seq=members.pop("from_seq", 0),
        limit=members.pop("limit", 100),
        records=records,
        next_from_seq=next_from_seq,
        head_seq=head_seq,
        earliest_seq=members.pop("earliest_seq", 1),
        caught_up=members.pop("caught_up", next_from_seq == head_seq),
        **members,
    )


def erased(begun: int, ended: int, tag: str, deleted: int) -> Erased:
    return Erased(topic="t", client="d", begun_ns=begun, ended_ns=ended, tag=tag, deleted=deleted)


ONE, TWO = (1, "p1", None), (2, "p2", "red")
WRITES = (wrote(1, 10, 20), wrote(2, 30, 40, tag="red", key="k"))


def faults(*operations: Operation, cap_records: int | None = None) -> list[str]:
    return History(list(operations), {} if cap_records is None else {"t": cap_records}).faults()


@pytest.mark.parametrize(
    "operations",
    [
        pytest.param((read(50, 60, ONE, TWO), read(50, 60, TWO, from_seq=1)), id="everything is there"),
        pytest.param((read(25, 35, ONE, head_seq=1), read(25, 35, ONE, TWO)), id="a write under way is there or not"),
        pytest.param((read(50, 60, ONE, limit=1, head_seq=2, next_from_seq=1),), id="a page ends at its limit"),
        pytest.param((wrote(2, 35, 38, tag="red", key="k", deduped=True),), id="a key that is repeated meanwhile"),
        pytest.param(
            (erased(50, 60, "red", 1), read(55, 56, ONE, TWO), read(70, 80, ONE, head_seq=2, client=LAST_READER)),
            id="a delete under way has happened or not",
        ),
    ],
)
def test_a_history_that_holds_has_no_faults(operations: tuple[Operation, ...]) -> None:
    assert faults(*WRITES, *operations) == []


@pytest.mark.parametrize(
    ("operations", "fault"),
    [
        pytest.param((wrote(2, 50, 60),), "both given seq 2", id="a seq given twice"),
        pytest.param((wrote(4, 50, 60),), "nobody was given the seqs 3 to 3", id="a seq left out"),
        pytest.param((wrote(3, 50, 60, payloads=("a", "b"), seqs=(3, 5)),), "got the seqs", id="a write with a hole"),
        pytest.param((wrote(3, 1, 5),), "began after a higher one was answered", id="order against real time"),
        pytest.param((wrote(3, 50, 60, key="k"),), "appended 2 times", id="a key appended twice"),
        pytest.param((wrote(1, 50, 60, key="k", deduped=True),), "deduped as (1,)", id="a key with other seqs"),
        pytest.param((wrote(2, 50, 60, key="x", deduped=True),), "nobody appended it", id="a key out of nowhere"),
        pytest.param((wrote(2, 1, 5, key="k", deduped=True),), "before it was sent", id="a key known too early"),
        pytest.param((read(50, 60, TWO, ONE),), "has the seqs [2, 1]", id="a page out of order"),
        pytest.param((read(50, 60, ONE, ONE, TWO),), "has the seqs [1, 1, 2]", id="a record twice in a page"),
        pytest.param((read(50, 60, ONE, TWO, from_seq=1),), "has the seqs", id="a record at the cursor"),
        pytest.param((read(50, 60, ONE, TWO, next_from_seq=3),), "ends at 3", id="a cursor above the head"),
        pytest.param((read(50, 60, ONE, TWO, caught_up=False),), "caught_up False", id="a wrong caught_up"),
        pytest.param((read(50, 60, ONE, head_seq=2, next_from_seq=1),), "is not at the head", id="a page cut short"),
        pytest.param((read(50, 60, TWO),), "went over seq 1", id="a hole in a page"),
        pytest.param((read(50, 60, (1, "p9", None), TWO),), "another record", id="another payload"),
        pytest.param((read(50, 60, (1, "p1", "red"), TWO),), "another record", id="another tag"),
        pytest.param((read(50, 60, ONE, TWO, (3, "p3", None)),), "nobody was given", id="a record out of nowhere"),
        pytest.param((read(1, 5, ONE),), "before it was sent", id="a record from the future"),
        pytest.param((read(50, 60, ONE),), "after 2 was answered", id="a stale head"),
        pytest.param((read(1, 5, head_seq=1, next_from_seq=1),), "was the last sent", id="a head from the future"),
        pytest.param(
            (erased(45, 95, "red", 1), read(50, 60, ONE, head_seq=2), read(70, 80, ONE, TWO)),
            "gone in an earlier read",
            id="a hole that is filled later",
        ),
        pytest.param((erased(50, 60, "red", 1), read(70, 80, ONE, TWO)), "had deleted", id="a delete without effect"),
        pytest.param(
            (erased(50, 60, "red", 2), read(70, 80, ONE, head_seq=2, client=LAST_READER)),
            "answered with 2 records, and 1 are missing",
            id="a delete that counts wrong",
        ),
        pytest.param((read(32, 34, ONE, TWO), read(36, 38, ONE)), "after it was at 2", id="a head that falls"),
        pytest.param(
            (read(50, 60, ONE, TWO, earliest_seq=2), read(70, 80, ONE, TWO)),
            "earliest_seq fall",
            id="a floor that falls",
        ),
        pytest.param((read(50, 60, TWO, gap=(1, 1)),), "told the gap (1, 1)", id="a tombstone without a cap"),
    ],
)
def test_each_broken_rule_is_found(operations: tuple[Operation, ...], fault: str) -> None:
    found = faults(*WRITES, *operations)
    assert any(fault in text for text in found), found


def test_tombstones_reach_exactly_to_the_cap() -> None:
    told = read(50, 60, TWO, gap=(1, 1))
    assert faults(*WRITES, told, cap_records=1) == []
    assert faults(*WRITES, replace(told, gap=(1, 2), records=()), cap_records=1) != []
    assert faults(*WRITES, replace(told, gap=None), cap_records=1) != []
    assert faults(*WRITES, told, read(70, 80, ONE, TWO), cap_records=1) != [], "what was evicted does not come back"
