"""Sources of a backup: a running server by files and by HTTP, a closed directory, a bucket as the place."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.client.faulty_proxy import answer, faulty_proxy
from tests.server.running import Running, running
from tests.storage.tiers.test_folder_store import moto_endpoint as moto_endpoint  # noqa: PLC0414 - a fixture
from tests.storage.tiers.test_folder_store import new_s3_address, set_aws_environment
from topics.backup.checking import BackupCheck
from topics.backup.plan import RestoreOrder
from topics.backup.restoring import restore_backup
from topics.backup.source import DirectorySource, Outdated, ServerSource
from topics.backup.store import open_backup
from topics.backup.taking import BackupReport, take_backup
from topics.client.sync.client import Client
from topics.errors import BadFrame, DirectoryLocked, Forbidden, StartRefused
from topics.storage.fs import RealFs

SMALL: dict[str, Any] = {"segment_max_events": 5, "hot_retain_segments": 1}


@contextmanager
def client_of(server: Running, key: str | None = None) -> Iterator[Client]:
    with Client(f"http://{server.host}:{server.port}", token=key, retries=0) as client:
        yield client


def back_up(client: Client, place: str, *, reads_files: bool = True) -> BackupReport:
    source = ServerSource(client, RealFs(), reads_files=reads_files)
    return take_backup(source, open_backup(place, RealFs()), 0)


def restore(place: str, directory: Path, order: RestoreOrder | None = None) -> None:
    restore_backup(
        open_backup(place, RealFs()), RealFs(), str(directory), order or RestoreOrder(), new_store_id=lambda: "5" * 32
    )


def append(client: Client, topic: str, count: int, tag: str = "x") -> None:
    records = b",".join(b'{"data":{"n":%d},"tag":"%b"}' % (n, tag.encode()) for n in range(count))
    client.append_encoded(topic, b"[%b]" % records)


def content_of(client: Client, topic: str) -> list[Any]:
    found: list[Any] = []
    cursor = 0
    while True:
        page = client.read(topic, cursor)
        found += [(record.seq, record.ts, record.tag, bytes(record.data)) for record in page.records]
        cursor = page.next_from_seq
        if page.caught_up:
            return found


def served(directory: Path, topic: str) -> list[Any]:
    with running(directory) as server, client_of(server) as client:
        return content_of(client, topic)


def test_files_and_http_give_the_same_records(tmp_path: Path) -> None:
    with running(tmp_path / "data", **SMALL) as server, client_of(server) as client:
        append(client, "t", 12)
        client.seal("t")
        append(client, "t", 3, "y")
        by_files = back_up(client, str(tmp_path / "files"))
        by_http = back_up(client, str(tmp_path / "http"), reads_files=False)
        assert by_files.records == by_http.records == 15
        client.delete("t", before_seq=4)
        # The kinds may be mixed: a segment that is there is not copied again.
        for place in ("files", "http"):
            for reads_files in (True, False):
                report = back_up(client, str(tmp_path / place), reads_files=reads_files)
                assert (report.new_files, report.records) == (0, 12)
        expected = content_of(client, "t")
    for place in ("files", "http"):
        restore(str(tmp_path / place), tmp_path / f"{place}-restored")
        assert served(tmp_path / f"{place}-restored", "t") == expected


def test_a_server_on_another_machine_is_backed_up_over_http(tmp_path: Path) -> None:
    """Its data directory is not there, or another store is at the same path."""
    with running(tmp_path / "data", **SMALL) as server, client_of(server) as client:
        append(client, "t", 7)
        client.seal("t")
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "STORE").write_text('{"format":1,"store_id":"%s"}' % ("7" * 32))
        try:
            assert back_up(client, str(tmp_path / "backup")).records == 7
        finally:
            (tmp_path / "data" / "STORE").unlink()
            (tmp_path / "data").rmdir()
            (tmp_path / "elsewhere").rename(tmp_path / "data")
    assert list(BackupCheck(open_backup(str(tmp_path / "backup"), RealFs())).run()) == []


def test_a_segment_that_was_moved_is_read_again_from_a_new_picture(tmp_path: Path) -> None:
    with running(tmp_path / "data", **SMALL) as server, client_of(server) as client:
        append(client, "t", 7)
        client.seal("t")
        source = ServerSource(client, RealFs())
        (topic,) = source.picture().topics
        os.unlink(tmp_path / "data" / "topics" / "00000001" / "seg-0000000000000001.data")
        with pytest.raises(Outdated, match="was removed or moved"):
            source.segment(topic, topic.segments[0])
        client.drop("t")
        with pytest.raises(Outdated, match='topic "t" was removed'):
            list(source.tail(topic, 1))
        append(client, "t", 9)
        with pytest.raises(Outdated, match='topic "t" was removed and created again'):
            list(source.tail(topic, 1))


def test_a_server_that_does_not_get_on_ends_a_backup(tmp_path: Path) -> None:
    """Frames with a next seq that was asked for already, or a damaged record before it. Asked once more, the server
    gives another error, so that this test ends without the check, too."""
    with running(tmp_path / "data", **SMALL) as server, client_of(server) as client:
        append(client, "t", 7)
        client.seal("t")
        (topic,) = ServerSource(client, RealFs()).picture().topics
    again = answer("400 -", b'{"error":{"code":"invalid_request","message":"asked again"}}')
    for next_seq in (3, 1, 0, -7):
        headers = [f"Topics-Next-Seq: {next_seq}", "Topics-Head-Seq: 7", f"Topics-Epoch: {topic.epoch}"]
        damage = {"error": {"code": "corrupt_record", "message": "damaged", "detail": {"seq": next_seq - 1}}}
        for first in (
            answer("200 -", b"", *headers, f"Topics-Id: {topic.id}"),
            answer("500 -", msgspec.json.encode(damage)),
        ):
            with faulty_proxy("http://127.0.0.1:1") as proxy, Client(proxy.url, retries=0) as client:
                proxy.route = lambda _, first=first, proxy=proxy: first if len(proxy.asked) == 1 else again
                with pytest.raises(BadFrame) as caught:
                    list(ServerSource(client, RealFs()).tail(topic, 3))
                assert caught.value.message == (
                    f'{proxy.url}: topic "t" from seq 3 on: the server answers without progress, with next seq '
                    f"{next_seq}; look for a proxy or a cache before it"
                )


def test_a_key_for_some_names_cannot_back_up(tmp_path: Path) -> None:
    keys = "all,some:admin+read:mine."
    with running(tmp_path / "data", keys=keys) as server:
        with client_of(server, "some") as client, pytest.raises(Forbidden, match="use a key for any name"):
            back_up(client, str(tmp_path / "backup"))
        with client_of(server, "all") as client:
            assert back_up(client, str(tmp_path / "backup")).topics == 0


def test_a_closed_directory_is_backed_up_and_an_open_one_is_not(tmp_path: Path) -> None:
    data, place = tmp_path / "data", str(tmp_path / "backup")

    def source(name: str) -> DirectorySource:
        scratch = tmp_path / name
        scratch.mkdir()
        return DirectorySource(RealFs(), str(data), str(scratch))

    with running(data, **SMALL) as server, client_of(server) as client:
        append(client, "t", 12)
        client.seal("t")
        append(client, "t", 3)
        with pytest.raises(DirectoryLocked, match="back it up with --server URL"):
            source("locked").picture()
        assert back_up(client, place).records == 15
        append(client, "t", 4)
        expected = content_of(client, "t")
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    report = take_backup(source("closed"), open_backup(place, RealFs()), 0)
    assert report.records == 19
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    restore(place, tmp_path / "restored")
    assert served(tmp_path / "restored", "t") == expected
    with pytest.raises(StartRefused, match="is no data directory: it has no STORE"):
        DirectorySource(RealFs(), str(tmp_path), str(tmp_path)).picture()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_backup_in_a_bucket_of_a_log_with_a_cold_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    set_aws_environment(monkeypatch, request.getfixturevalue("moto_endpoint"))
    place = new_s3_address()
    with running(tmp_path / "data", cold_dir=str(tmp_path / "cold"), **SMALL) as server, client_of(server) as client:
        append(client, "t", 12)
        client.seal("t")
        while b'"tier":"cold"' not in client.manifest("t"):
            # The next answer may have it: segments are moved in the background.
            append(client, "other", 1)
        assert back_up(client, place).new_files == 4
        append(client, "t", 5)
        assert back_up(client, place).new_files == 1
        assert back_up(client, place).new_files == 0
        expected = content_of(client, "t")
    assert list(BackupCheck(open_backup(place, RealFs())).run()) == []
    restore(place, tmp_path / "restored")
    assert served(tmp_path / "restored", "t") == expected
    restore(place, tmp_path / "cut", RestoreOrder(until_seqs={"t": 6}))
    assert served(tmp_path / "cut", "t") == expected[:6]
