"""`topics dump` of the files of a stream directory: every message and every entry, through damage."""

import base64
from typing import Any

import msgspec
import pytest

from tests.streams.system_world import PARTITION, ROOT, World
from topics.formats.message_cipher import Cipher
from topics.formats.message_codec import Codec
from topics.formats.user_headers import HeaderField
from topics.storage.layout import is_streams_file
from topics.streams.consumers.polling import Consumer
from topics.streams.inspect.dump import dump_streams
from topics.streams.partitions.batch import NewMessage, encode_send
from topics.streams.partitions.partitioning import PartitionId
from topics.testing.fake_disk import FakeDisk

LOG = f"{PARTITION}/{0:020d}.log"
INDEX = f"{PARTITION}/{0:020d}.index"
KEY = base64.b64encode(bytes(32)).decode()


def rows(disk: FakeDisk, path: str, **options: Any) -> list[dict[str, Any]]:
    assert is_streams_file(path)
    text = msgspec.json.encode(list(dump_streams(disk, path, **options)))
    return msgspec.json.decode(text, type=list[dict[str, Any]])


def made(flavour: str = "page", *messages: NewMessage, **system: Any) -> World:
    world = World({"system": system}, flavour=flavour)
    world.make_topic(compression=Codec.GZIP)
    world.system.send("s", "t", encode_send(list(messages)), PartitionId(0))
    world.system.close()
    return world


@pytest.mark.parametrize("flavour", ["page", "iggy"])
def test_messages_are_shown_as_a_client_gets_them(flavour: str) -> None:
    headers = {"trace": "t-1", "big": 2**63, "raw": b"\xff", "ratio": 0.5, HeaderField(77, b"k"): True}
    world = made(
        flavour,
        NewMessage(b'{"n":1}', 2**127, headers),
        NewMessage(b"\x00\x01", 7),
        NewMessage(b"text", origin_timestamp=2**63),
    )
    first, second, third = rows(world.disk, LOG)
    assert first == {
        "position": 0,
        "length": second["position"],
        "offset": 0,
        "id": str(2**127),
        "timestamp": first["timestamp"],
        "origin_timestamp": first["origin_timestamp"],
        "headers": [
            {"key": "trace", "kind": "string", "value": "t-1"},
            {"key": "big", "kind": "uint64", "value": str(2**63)},
            {"key": "raw", "kind": "raw", "value_base64": "/w=="},
            {"key": "ratio", "kind": "float64", "value": 0.5},
            {"key_kind": "77", "key_base64": "aw==", "kind": "bool", "value": True},
        ],
        "payload_bytes": 7,
        "payload": {"n": 1},
        "checksum_ok": True,
    }
    assert (second["offset"], second["id"], second["payload_base64"]) == (1, "7", "AAE=")
    assert third["origin_timestamp"] == str(2**63)
    assert [row.keys() & {"payload", "payload_base64"} for row in rows(world.disk, LOG, with_data=False)] == [set()] * 3


def test_encrypted_and_compressed_messages_need_the_key() -> None:
    encryption = {"enabled": True, "key": KEY}
    compression = {"allow_override": True}
    world = World({"system": {"encryption": encryption, "compression": compression}}, flavour="page")
    world.disk = FakeDisk()
    world.open()
    world.make_topic(compression=Codec.GZIP)
    world.send(b'"a secret"')
    world.system.close()
    (row,) = rows(world.disk, LOG, cipher=Cipher(KEY))
    assert row["payload"] == "a secret"
    (row,) = rows(world.disk, LOG)
    assert "payload" not in row
    assert row["error"]
    assert rows(world.disk, f"{ROOT}/state.messages")[-1]["checksum_ok"] is False
    commands = [entry["command"] for entry in rows(world.disk, f"{ROOT}/state.messages", cipher=Cipher(KEY))]
    assert commands == ["create_user", "create_stream", "create_topic"]
    assert rows(world.disk, f"{PARTITION}/{0:020d}.codec") == [{"codec": "gzip"}]


def test_bad_bytes_are_shown_and_messages_after_them_are_found() -> None:
    world = made("page", *(NewMessage(b"message %d" % number) for number in range(4)))
    world.disk.poke(LOG, 80, b"????")
    shown = rows(world.disk, LOG)
    assert [row.get("offset") for row in shown] == [0, None, 2, 3]
    assert shown[1] == {
        "position": 73,
        "length": 73,
        "checksum_ok": False,
        "error": "no good message with offset 1 is here",
        "next_message_at": 146,
    }
    world.disk.replace(LOG, world.disk.read(LOG)[:200])
    assert rows(world.disk, LOG)[-1] == {
        "position": 73,
        "length": 127,
        "checksum_ok": False,
        "error": "no good message with offset 1 is here",
        "next_message_at": None,
    }


def test_a_log_without_its_directory_shows_messages_without_headers() -> None:
    world = made("iggy", NewMessage(b"plain"), NewMessage(b"with", 1, {"a": "b"}))
    elsewhere = f"/{0:020d}.log"
    world.disk.rename(LOG, elsewhere)
    plain, headed = rows(world.disk, elsewhere)
    assert plain["payload_base64"] == base64.b64encode(b"plain").decode()
    assert "no state log was found" in headed["error"]


@pytest.mark.parametrize("flavour", ["page", "iggy"])
def test_state_entries_are_shown_without_hashes(flavour: str) -> None:
    world = made(flavour, NewMessage(b"x"))
    world.open()
    world.system.accounts.create_user("bob", "password")
    world.system.accounts.create_token("token")
    world.system.accounts.change_password("bob", "password", "other password")
    hashes = [world.system.metadata.resolve_user("bob").password_hash]
    hashes += [token.hash for token in world.system.metadata.resolve_user(0).tokens.values()]
    world.system.close()
    path = f"{ROOT}/state.messages" if flavour == "page" else f"{ROOT}/state/log"
    shown = rows(world.disk, path)
    assert [row["command"] for row in shown][1:] == [
        "create_stream",
        "create_topic",
        "create_user",
        "create_personal_access_token",
        "change_password",
    ]
    assert [row["index"] for row in shown] == list(range(6))
    assert shown[1]["body"] == {"stream_id": 0, "name": "s"}
    assert shown[-1]["position"] + shown[-1]["length"] == len(world.disk.read(path))
    text = str(shown)
    assert not [secret for secret in hashes if secret in text]
    assert "argon2" not in text


def test_index_offsets_and_version_files_are_shown() -> None:
    world = made("page", NewMessage(b"ab"), NewMessage(b"c"))
    world.open()
    world.system.store_offset("s", "t", Consumer(5), 1)
    world.system.close()
    first, second = rows(world.disk, INDEX)
    assert (first["offset"], first["position"], first["length"]) == (0, 0, 66)
    assert (second["offset"], second["position"], second["length"]) == (1, 66, 65)
    world.disk.replace(INDEX, world.disk.read(INDEX) + b"123")
    assert rows(world.disk, INDEX)[-1] == {"error": "3 bytes after the last whole entry"}
    assert rows(world.disk, f"{PARTITION}/offsets/consumers/5") == [{"stored_offset": 1}]
    assert rows(world.disk, f"{ROOT}/info.json")[0]["flavour"] == "page"


def test_names_of_topics_are_not_taken_for_streams() -> None:
    for path in ("/d/wal/wal-0000000000000001.log", "/d/topics/00000001/seg-0000000000000001.data", "/d/x.log", "/d/7"):
        assert not is_streams_file(path)
