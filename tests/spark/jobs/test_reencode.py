"""`reencode`: the new directory has the same messages in another form, also after kills."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.in_process import InProcess
from tests.spark.streams_world import KEY, OTHER_KEY, Row, open_world, payload, read, send, settings_of, write
from topics.errors import InvalidRequest, StartRefused
from topics.formats.message_cipher import Cipher
from topics.spark.errors import BadOption, Conflict
from topics.spark.jobs.job import Report
from topics.spark.jobs.job_options import ReencodeOptions
from topics.spark.jobs.reencode import Reencoder, run
from topics.spark.jobs.reencode_segment import SegmentItem, SegmentRewritten
from topics.storage.fs import RealFs
from topics.streams.inspect.verify import StreamsVerifier
from topics.streams.settings import StreamsSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Work = Callable[[SegmentItem], SegmentRewritten]


class Killed(Exception):
    pass


def reencode(source: Path, target: Path, spread_out: Any = None, **given: Any) -> Report:
    config = ReencodeOptions(source=str(source), target=str(target), **given)
    return Reencoder(config, InProcess(spread_out)).run()


def verify(path: Path, key: str | None = None) -> int:
    """How many messages there are, all of them sound, for the command that looks at everything."""
    verifier = StreamsVerifier(RealFs(), str(path), cipher=None if key is None else Cipher(key))
    assert list(verifier.run()) == []
    return verifier.totals.records


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("OLD", KEY)
    monkeypatch.setenv("NEW", OTHER_KEY)
    return {"OLD": KEY, "NEW": OTHER_KEY}


def read_with(path: Path, key_env: str | None) -> list[Row]:
    return read(path, **({} if key_env is None else {"keyEnv": key_env}))


PLAIN: dict[str, Any] = {}
OLD: dict[str, Any] = {"source_key_env": "OLD"}


@pytest.mark.parametrize(
    ("before", "given", "old", "new", "after"),
    [
        ({}, PLAIN, None, None, {}),
        ({}, {"target_key_env": "NEW"}, None, "NEW", {"key": OTHER_KEY}),
        ({"key": KEY}, OLD | {"decrypt": True}, "OLD", None, {}),
        ({"key": KEY}, OLD | {"target_key_env": "NEW"}, "OLD", "NEW", {"key": OTHER_KEY}),
        ({"key": KEY}, OLD | {"compression": "lz4"}, "OLD", "OLD", {"key": KEY, "compression": "lz4"}),
        ({"compression": "zstd"}, {"compression": "none"}, None, None, {}),
        ({"compression": "gzip"}, {"compression": "zstd", "target_key_env": "NEW"}, None, "NEW", {"key": OTHER_KEY}),
        ({}, {"flavour": "iggy"}, None, None, {"flavour": "iggy"}),
        ({"flavour": "iggy", "key": KEY}, OLD | {"flavour": "page"}, "OLD", "OLD", {"key": KEY}),
        (
            {"flavour": "iggy"},
            {"flavour": "page", "compression": "zstd", "target_key_env": "NEW"},
            None,
            "NEW",
            {"key": OTHER_KEY},
        ),
    ],
    ids=str,
)
def test_messages_are_the_same_in_any_other_form(
    before: dict[str, Any],
    given: dict[str, Any],
    old: str | None,
    new: str | None,
    after: dict[str, Any],
    keys: dict[str, str],
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "old", tmp_path / "new"
    with open_world(source, settings_of(**before), partitions=2) as streams:
        send(streams, 100)
        send(streams, 7, partition=1)
        streams.store_offset("orders", "events", 41, consumer="billing", partition=0)
        streams.create_group("orders", "events", "readers")
    expected = read_with(source, old)
    report = reencode(source, target, **given)
    assert (report.records, report.exit_code) == (107, 0)
    assert report.items_done == report.detail["segments"] > 3
    assert read_with(target, new) == expected
    assert verify(target, None if new is None else keys[new]) == 107
    # An engine goes on with it, with the offsets that consumers have stored.
    with open_world(target, settings_of(**after)) as streams:
        stored = streams.stored_offset("orders", "events", consumer="billing", partition=0)
        assert stored is not None
        assert stored.stored_offset == 41
        assert [group.name for group in streams.topic("orders", "events").info.groups.values()] == ["readers"]
        send(streams, 10, first=100)
    assert len(read_with(target, new)) == 117


def test_what_is_done_is_not_done_again_and_the_source_is_as_it_was(keys: dict[str, str], tmp_path: Path) -> None:
    source, target = tmp_path / "old", tmp_path / "new"
    write(source, 100)
    before = contents(source)
    first = reencode(source, target, target_key_env="NEW")
    assert contents(source) == before
    files = contents(target)
    again = reencode(source, target, target_key_env="NEW")
    assert (again.items_done, again.items_skipped) == (0, first.items_done)
    assert contents(target) == files


def contents(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != ".topics.lock"}


@pytest.mark.parametrize("survivors", [0, 1, 4])
def test_a_job_that_is_killed_goes_on_where_it_was(survivors: int, keys: dict[str, str], tmp_path: Path) -> None:
    source, target = tmp_path / "old", tmp_path / "new"
    write(source, 200)
    left = survivors

    def dying(items: Sequence[SegmentItem], work: Work) -> list[SegmentRewritten]:
        nonlocal left
        done = []
        for item in items:
            if left == 0:
                # In the middle of a segment.
                Path(item.target_directory, f"{item.start_offset:020d}.log.0badcafe.tmp").write_bytes(b"half")
                raise Killed
            left -= 1
            done.append(work(item))
        return done

    with pytest.raises(Killed):
        reencode(source, target, dying, target_key_env="NEW", compression="zstd")
    # Half of a directory is no data directory.
    with pytest.raises(StartRefused, match="no data directory of streams"):
        read_with(target, "NEW")
    report = reencode(source, target, target_key_env="NEW", compression="zstd")
    assert report.items_skipped == survivors
    assert read_with(target, "NEW") == read(source)
    assert verify(target, OTHER_KEY) == 200
    assert not list(target.rglob("*.tmp"))


def test_another_request_for_the_same_target_is_refused(keys: dict[str, str], tmp_path: Path) -> None:
    source, target = tmp_path / "old", tmp_path / "new"
    write(source, 30)

    def dying(_items: Sequence[SegmentItem], _work: Work) -> list[SegmentRewritten]:
        raise Killed

    with pytest.raises(Killed):
        reencode(source, target, dying, target_key_env="NEW")
    with pytest.raises(Conflict, match="asked for something else"):
        reencode(source, target, target_key_env="NEW", compression="zstd")
    with pytest.raises(Conflict, match="an earlier run had another key"):
        reencode(source, target, target_key_env="OLD")
    write(source, 10)
    with pytest.raises(Conflict, match="or the source has changed"):
        reencode(source, target, target_key_env="NEW")


def test_directories_that_are_not_free_are_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "old", tmp_path / "new"
    with open_world(source), pytest.raises(Conflict, match="in use by another process"):
        reencode(source, target)
    target.mkdir()
    (target / "something").touch()
    with pytest.raises(Conflict, match="is not empty"):
        reencode(source, target)
    for place in (source, source / "below", tmp_path):
        with pytest.raises(BadOption, match="overlap: give a new directory"):
            reencode(source, place)
    with pytest.raises(StartRefused, match="is not there"):
        reencode(tmp_path / "nowhere", tmp_path / "other")


def test_damage_is_never_copied_as_if_it_were_none(tmp_path: Path) -> None:
    source = tmp_path / "old"
    write(source, 100)
    logs = sorted(source.glob("streams/0/topics/0/partitions/0/*.log"))
    index = logs[1].with_suffix(".index")
    for file, position, problem in (
        (logs[1], 70, f"the message at offset {int(logs[1].stem)} is damaged"),
        (index, 16, "the index is not in order"),
        (index, 20, "or its index entry is damaged"),
        (index, 24, "is damaged|not in order"),
    ):
        sound = file.read_bytes()
        damaged = bytearray(sound)
        damaged[position] ^= 0x01
        file.write_bytes(damaged)
        with pytest.raises(StartRefused, match=problem):
            reencode(source, tmp_path / f"new-{file.suffix}-{position}", compression="zstd")
        file.write_bytes(sound)
    with logs[-1].open("ab") as last:
        last.write(b"torn")
    with pytest.raises(StartRefused, match="the next start of the engine repairs what a crash left"):
        reencode(source, tmp_path / "new-torn")


def test_compression_that_other_servers_cannot_read_must_be_forced(tmp_path: Path) -> None:
    source = tmp_path / "old"
    write(source, 30, settings_of(compression="zstd"))
    for given in ({"flavour": "iggy"}, {"flavour": "iggy", "compression": "lz4"}):
        with pytest.raises(InvalidRequest, match="ask for compression none, or force it"):
            reencode(source, tmp_path / "new", **given)
    reencode(source, tmp_path / "plain", flavour="iggy", compression="none")
    assert not list((tmp_path / "plain").rglob("*.codec"))
    reencode(source, tmp_path / "forced", flavour="iggy", force=True)
    assert read(tmp_path / "forced") == read(tmp_path / "plain") == read(source)


def test_a_segment_that_grows_too_large_is_cut(tmp_path: Path) -> None:
    source, target = tmp_path / "old", tmp_path / "new"
    with open_world(source, settings_of(compression="zstd", segment_bytes=1024 * 1024)) as streams:
        for number in range(40):
            streams.send("orders", "events", [payload(number) * 1000], partition=0)
    assert len(list(source.rglob("*.log"))) == 1
    reencode(source, target, compression="none", segment_bytes_max=1024 * 1024)
    assert len(list(target.rglob("*.log"))) > 1
    assert read(target) == read(source)
    assert verify(target) == 40


def test_a_plan_alone_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "old", 100)
    report = reencode(tmp_path / "old", tmp_path / "new", dry_run=True)
    assert report.detail["segments"] > 1
    assert not (tmp_path / "new").exists()


def test_a_key_and_no_encryption_are_not_asked_for_together(keys: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path / "old", 10)
    with pytest.raises(BadOption, match="leave out one of the two"):
        reencode(tmp_path / "old", tmp_path / "new", decrypt=True, target_key_env="NEW")
    with pytest.raises(BadOption, match="there is no variable NOT_THERE"):
        reencode(tmp_path / "old", tmp_path / "new", target_key_env="NOT_THERE")


def test_a_directory_of_another_server_keeps_what_belongs_to_it(shared_fixtures: Path, tmp_path: Path) -> None:
    fixture = shared_fixtures / "iggy-0.8.0"
    if not fixture.is_dir():
        pytest.skip("the directory of another server is missing: no folder iggy-0.8.0 in ../shared/fixtures")
    source = tmp_path / "old"
    shutil.copytree(fixture, source)
    for path in [source, *source.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    reencode(source, tmp_path / "same")
    for path in source.rglob("*"):
        if path.is_file() and path.name != ".topics.lock":
            assert (tmp_path / "same" / path.relative_to(source)).read_bytes() == path.read_bytes()
    reencode(source, tmp_path / "page", flavour="page", compression="zstd")
    for topic in ("events", "audit"):
        assert read(tmp_path / "page", topic=topic) == read(source, topic=topic)
    with open_world(tmp_path / "page", StreamsSettings()) as streams:
        assert streams.system.accounts.login("iggy", "iggy").id == 0


def test_spark_does_it_without_a_key_in_any_plan(spark: "SparkSession", tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(KEY)
    write(tmp_path / "old", 200)
    config = ReencodeOptions(
        source=str(tmp_path / "old"), target=str(tmp_path / "new"), target_key_file=str(key_file), compression="zstd"
    )
    seen: list[Any] = []
    report = run(spark, config, report=seen.append)
    assert report.records == 200
    assert sum(progress.records for progress in seen[-1:]) == 200
    assert read(tmp_path / "new", keyFile=str(key_file)) == read(tmp_path / "old")
    assert verify(tmp_path / "new", KEY) == 200
    assert KEY not in repr(report)
    for path in (tmp_path / "new").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
