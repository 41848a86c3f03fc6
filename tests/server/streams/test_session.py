"""Sends and polls over the wire, and who may do them."""

from pathlib import Path

import pytest

from tests.server.streams.peer import (
    FIRST,
    LAST,
    NEXT,
    Peer,
    Refused,
    StreamsServer,
    at_offset,
    at_time,
    message,
    send_payload,
    streams_server,
)
from topics.formats.message import HEADER
from topics.formats.stream_command import DeleteUser, UpdatePermissions
from topics.formats.stream_permissions import Permissions
from topics.limits import MIB
from topics.protocol.iggy.codes import Code
from topics.protocol.iggy.frames import encode_frame
from topics.protocol.iggy.requests import FlushUnsavedBuffer, PollMessages


def refusal(peer: Peer, code: int, payload: bytes) -> int:
    with pytest.raises(Refused) as refused:
        peer.ask(code, payload)
    return refused.value.status


# Sending.


def test_a_documented_send_is_polled_as_documented(root: Peer, name: str) -> None:
    root.create(name, "t")
    body = bytes.fromhex(
        "0000000000000000 01000000000000000000000000000000 0000000000000000 0000000000000000 c0fd0e18240a0600 "
        "00000000 05000000 0000000000000000 68656c6c6f"
    )
    root.ask(Code.SEND_MESSAGES, send_payload(name, "t", [body], 0))
    polled = root.poll(name, "t", at_offset(0), count=10)
    (header,) = polled.headers
    assert header[1] == (1).to_bytes(16, "little")
    assert (header[4], header[5], header[6], header[7]) == (1_699_999_999_000_000, 0, 5, 0)
    assert polled.messages == [(0, b"hello")]


def test_messages_go_to_the_partition_that_is_named_chosen_by_key_or_next_in_turn(root: Peer, name: str) -> None:
    root.create(name, "t", partitions=3)
    for number in range(3):
        root.send(name, "t", [b"turn %d" % number])
    assert [root.poll(name, "t", partition=number).payloads for number in range(3)] == [
        [b"turn 0"],
        [b"turn 1"],
        [b"turn 2"],
    ]
    root.send(name, "t", [b"named"], 2)
    # xxh32 of "key" is 3017358048: partition 0 of 3.
    root.send(name, "t", [b"by key"], b"key")
    assert root.poll(name, "t", LAST, count=1, partition=2).payloads == [b"named"]
    assert root.poll(name, "t", LAST, count=1, partition=0).payloads == [b"by key"]


def test_user_headers_come_back_after_the_payload(root: Peer, name: str) -> None:
    root.create(name, "t")
    headers = bytes.fromhex("02 03000000 6b6579 0b 04000000 2a000000")
    root.ask(Code.SEND_MESSAGES, send_payload(name, "t", [message(b"hello", 2, headers), message(b"x")], 0))
    payload = root.do(PollMessages(1, 0, name, "t", 0, 3, 0, 10, False))
    assert payload[16 + 64 : 16 + 64 + 5 + 17] == b"hello" + headers
    root.do(FlushUnsavedBuffer(name, "t", 0, True))
    assert root.do(PollMessages(1, 0, name, "t", 0, 3, 0, 10, False)) == payload


@pytest.mark.parametrize(
    ("broken", "status"),
    [
        ([message(b"x")[:-1]], 4036),
        ([message(b"x")[:63]], 4033),
        ([HEADER.pack(0, bytes(16), 0, 0, 0, 0, 0, 1)], 4101),
        ([HEADER.pack(0, bytes(16), 0, 0, 0, 0, 2**32 - 1, 0)], 4022),
        ([HEADER.pack(0, bytes(16), 0, 0, 0, 2**32 - 1, 0, 0)], 4017),
        ([HEADER.pack(0, bytes(16), 0, 0, 0, 2**32 - 1, 2**32 - 1, 0)], 4022),
        ([HEADER.pack(0, bytes(16), 9, 0, 0, 0, 0, 0), HEADER.pack(0, bytes(16), 1, 0, 0, 0, 0, 0)], 4100),
        ([], 4009),
    ],
)
def test_a_batch_is_checked_before_its_topic_is_looked_for(root: Peer, broken: list[bytes], status: int) -> None:
    """Lengths that would overflow are checked, too."""
    assert refusal(root, Code.SEND_MESSAGES, send_payload("nothing", "nothing", broken)) == status
    assert root.ask(Code.PING) == b""


def test_a_send_to_nowhere_has_the_status_of_what_is_missing(root: Peer, name: str) -> None:
    root.create(name, "t")
    root.create(name + "empty", "none", partitions=0)
    for stream, topic, partitioning, status in (
        ("nothing", "t", None, 1009),
        (name, "nothing", None, 2010),
        (name, "t", 1, 3007),
        (name + "empty", "none", None, 2010),
        (name + "empty", "none", b"key", 3008),
        (name + "empty", "none", 0, 3007),
    ):
        with pytest.raises(Refused) as refused:
            root.send(stream, topic, [b"x"], partitioning)
        assert refused.value.status == status


def test_a_large_send_arrives_whole(root: Peer, name: str) -> None:
    root.create(name, "t")
    payloads = [bytes([number]) * MIB for number in range(8)]
    root.send(name, "t", payloads, 0)
    assert root.poll(name, "t").payloads == payloads


def test_pipelined_requests_are_answered_in_order(root: Peer, name: str) -> None:
    """Fast and slow ones, on the loop and on threads."""
    root.create(name, "t")
    send = encode_frame(Code.SEND_MESSAGES, send_payload(name, "t", [message(b"x")], 0))
    large = encode_frame(Code.SEND_MESSAGES, send_payload(name, "t", [message(bytes(MIB))], 0))
    bad = encode_frame(9999, b"unknown")
    frames = [send, encode_frame(Code.GET_STREAMS), large, bad, encode_frame(Code.PING), send] * 20
    root.write(b"".join(frames))
    for frame in frames:
        status, payload = root.answer()
        assert status == (3 if frame is bad else 0)
        assert bool(payload) == (frame == encode_frame(Code.GET_STREAMS))
    assert root.poll(name, "t", LAST, count=1).offsets == [59]


def test_many_small_requests_at_once_are_all_answered(root: Peer) -> None:
    root.write(encode_frame(Code.PING) * 5000)
    assert root.read(8 * 5000) == bytes(8 * 5000)


# Polling.


def test_every_strategy_begins_where_it_should(root: Peer, name: str) -> None:
    root.create(name, "t")
    for number in range(5):
        root.send(name, "t", [b"%d" % number], 0)
    headers = root.poll(name, "t").headers
    assert root.poll(name, "t", FIRST, count=2).offsets == [0, 1]
    assert root.poll(name, "t", LAST, count=2).offsets == [3, 4]
    assert root.poll(name, "t", at_offset(3)).offsets == [3, 4]
    assert root.poll(name, "t", at_offset(5)).offsets == []
    assert root.poll(name, "t", at_time(headers[2][3])).offsets[-1] == 4
    assert root.poll(name, "t", at_time(2**63)).offsets == []
    assert root.poll(name, "t", NEXT, count=2, auto_commit=True).offsets == [0, 1]
    assert root.poll(name, "t", NEXT, count=2, auto_commit=True).offsets == [2, 3]
    assert root.poll(name, "t", NEXT, count=9, consumer="other").offsets == [0, 1, 2, 3, 4]
    assert root.poll(name, "t", NEXT).offsets == [4]


def test_an_answer_always_has_the_last_offset(root: Peer, name: str) -> None:
    root.create(name, "t")
    for count in (0, 10):
        polled = root.poll(name, "t", count=count)
        assert (polled.partition_id, polled.current_offset, polled.count) == (0, 0, 0)
    root.send(name, "t", [b"x"] * 3, 0)
    for strategy in (FIRST, at_offset(9), NEXT):
        polled = root.poll(name, "t", strategy, count=0, partition=None)
        assert (polled.partition_id, polled.current_offset, polled.count) == (0, 2, 0)


def test_a_poll_of_what_is_missing_has_its_status(root: Peer, name: str) -> None:
    root.create(name, "t")
    for stream, topic, partition, status in (("nothing", "t", 0, 1009), (name, "no", 0, 2010), (name, "t", 1, 3007)):
        for strategy in (FIRST, NEXT, at_offset(0)):
            with pytest.raises(Refused) as refused:
                root.poll(stream, topic, strategy, partition=partition)
            assert refused.value.status == status


def test_the_same_messages_are_polled_from_memory_and_from_files(tmp_path: Path) -> None:
    table = {"system": {"partition": {"messages_required_to_save": 4}, "segment": {"size": 512}}}
    with streams_server(tmp_path, table) as served:
        root = served.login()
        root.create("s", "t")
        for number in range(30):
            root.send("s", "t", [b"%02d" % number + bytes(60)], 0)
            for start in range(number + 2):
                assert root.poll("s", "t", at_offset(start)).offsets == list(range(start, number + 1))


def test_an_answer_ends_at_its_size_after_one_message(tmp_path: Path) -> None:
    table = {"system": {"partition": {"max_poll_bytes": "1 KiB"}}}
    with streams_server(tmp_path, table) as served:
        root = served.login()
        root.create("s", "t")
        root.send("s", "t", [bytes(5000), bytes(400), bytes(400), bytes(400)], 0)
        assert root.poll("s", "t").offsets == [0]
        assert root.poll("s", "t", at_offset(1)).offsets == [1, 2]


# Users.


def test_sends_and_polls_need_their_flags(streams: StreamsServer, root: Peer, name: str) -> None:
    root.create(name, "t")
    root.create_user(name + "send", Permissions(send_messages=True))
    root.create_user(name + "poll", Permissions(poll_messages=True))
    sender, poller = streams.login(name + "send", name + "send"), streams.login(name + "poll", name + "poll")
    sender.send(name, "t", [b"x"], 0)
    assert sender.status(FlushUnsavedBuffer(name, "t", 0, False)) == 0
    assert poller.poll(name, "t").payloads == [b"x"]
    for peer, code, payload in (
        (poller, Code.SEND_MESSAGES, send_payload(name, "t", [message(b"x")], 0)),
        # The partition is looked for after the permission was checked.
        (poller, Code.SEND_MESSAGES, send_payload(name, "t", [message(b"x")], 9)),
    ):
        assert refusal(peer, code, payload) == 41
    assert poller.status(FlushUnsavedBuffer(name, "t", 0, False)) == 41
    assert sender.status(PollMessages(1, 0, name, "t", 0, 3, 0, 1, False)) == 41


def test_changed_permissions_act_at_once(streams: StreamsServer, root: Peer, name: str) -> None:
    root.create(name, "t")
    root.create_user(name, Permissions(send_messages=True))
    sender = streams.login(name, name)
    sender.send(name, "t", [b"x"], 0)
    root.do(UpdatePermissions(name, None))
    assert refusal(sender, Code.SEND_MESSAGES, send_payload(name, "t", [message(b"x")], 0)) == 41
    root.do(UpdatePermissions(name, Permissions(send_messages=True)))
    sender.send(name, "t", [b"x"], 0)


def test_a_deleted_user_is_not_logged_in_any_more(streams: StreamsServer, root: Peer, name: str) -> None:
    root.create(name, "t")
    root.create_user(name, Permissions(send_messages=True))
    sender = streams.login(name, name)
    root.do(DeleteUser(name))
    # The next user gets the same id, and must not get the connection.
    root.create_user(name + "new", Permissions(send_messages=True))
    payload = send_payload(name, "t", [message(b"x")], 0)
    assert refusal(sender, Code.SEND_MESSAGES, payload) == 40
    assert refusal(sender, Code.SEND_MESSAGES, payload) == 40
    sender.login(name + "new", name + "new")
    sender.send(name, "t", [b"x"], 0)
