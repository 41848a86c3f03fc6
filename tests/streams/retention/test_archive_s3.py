"""Archiving to S3: a real server, and a proxy that fails."""

import http.server
import itertools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

pytest.importorskip("obstore", reason="obstore (the extra `s3`) is not installed")

from tests.storage.tiers.test_folder_store import request_plain, running_moto, set_aws_environment
from tests.storage.tiers.test_s3_store import Fault, Front, FrontHandler, carry_out_but_fail, hang_up, refuse
from tests.streams.partitions.partition_world import batch
from tests.streams.retention.kept_topic import DATA, KeptTopic, key_of
from tests.streams.retention.test_archive import local_files, name_of, sealed_files
from topics.errors import StartRefused
from topics.formats.message_codec import Codec
from topics.storage.fs import RealFs
from topics.storage.tiers.store import SegmentStore
from topics.streams.retention.archive import ArchivePass, Archiver, open_archive
from topics.streams.retention.restore import RestoreReport, restore
from topics.streams.settings import from_mapping
from topics.testing.fake_disk import FakeDisk

# Deprecation warnings inside the S3 server would become errors in its answers.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SECRET: Final = "a-secret-that-nobody-may-see"

_bucket_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def moto_endpoint() -> Iterator[str]:
    with running_moto() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket of this test only. The environment names another server and account, which must not be used."""
    set_aws_environment(monkeypatch, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-account")
    name = f"archive-{next(_bucket_numbers)}"
    assert request_plain(moto_endpoint, "PUT", f"/{name}") == 200
    return name


@contextmanager
def front_of(endpoint: str) -> Iterator[Front]:
    """A proxy with faults that records the requests."""

    class Handler(FrontHandler):
        pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.front = front = Front(f"http://127.0.0.1:{server.server_port}", endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield front
    finally:
        front.is_released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def open_bucket(endpoint: str, bucket: str, key_id: str = "our-key") -> SegmentStore:
    s3 = {"bucket": bucket, "endpoint": endpoint, "region": "eu-west-1", "key_id": key_id, "key_secret": SECRET}
    settings = from_mapping({"data_maintenance": {"archiver": {"kind": "s3", "s3": s3}}})
    return open_archive(RealFs(), DATA, settings)


def objects(store: SegmentStore) -> dict[str, bytes]:
    return {name: store.read_range(name, 0, 10_000_000) for name in store.list("")}


def filled_topic(disk: FakeDisk, codec: Codec = Codec.NONE) -> KeptTopic:
    topic = KeptTopic(disk, partitions_count=2, codec=codec)
    while len(topic.starts(0)) < 3:
        topic.fill(0, 1)
    return topic


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_bucket_holds_each_sealed_segment_once_and_gives_it_back(
    moto_endpoint: str, bucket: str, codec: Codec
) -> None:
    disk = FakeDisk()
    topic = filled_topic(disk, codec)
    store = open_bucket(moto_endpoint, bucket)
    assert Archiver(disk, DATA, store).run(topic.partitions) == ArchivePass(4, 0)
    expected = sealed_files(disk, topic)
    assert objects(store) == expected
    # Another process recognises the copies.
    with front_of(moto_endpoint) as front:
        assert Archiver(disk, DATA, open_bucket(front.endpoint, bucket)).run(topic.partitions) == ArchivePass(0, 0)
        assert set(front.methods()) == {"HEAD", "GET"}
    other = FakeDisk()
    logs_bytes = sum(len(data) for name, data in expected.items() if name.endswith(".log"))
    assert restore(open_bucket(moto_endpoint, bucket), other, DATA) == RestoreReport(4, logs_bytes, 0)
    assert local_files(other) == expected
    restored = KeptTopic(other, partitions_count=2, codec=codec)
    for partition_id in range(2):
        sealed = {offset: data for offset, data in topic.messages(partition_id).items() if offset < topic.starts()[-1]}
        assert restored.messages(partition_id) == sealed


def test_a_partition_that_began_anew_replaces_its_objects(moto_endpoint: str, bucket: str) -> None:
    disk = FakeDisk()
    topic = filled_topic(disk)
    store = open_bucket(moto_endpoint, bucket)
    archiver = Archiver(disk, DATA, store)
    archiver.run(topic.partitions)
    topic.partition(0).purge()
    topic.fill(0, 0)
    assert Archiver(disk, DATA, store).run(topic.partitions) == ArchivePass(2, 0)
    assert objects(store) == sealed_files(disk, topic)


def test_a_large_segment_is_one_object(moto_endpoint: str, bucket: str) -> None:
    """A large segment is sent in one request: a multipart upload could be left unfinished."""
    disk = FakeDisk()
    topic = KeptTopic(disk)
    topic.partition().append(batch(*(bytes([number]) * 1_000_000 for number in range(7))))
    with front_of(moto_endpoint) as front:
        assert Archiver(disk, DATA, open_bucket(front.endpoint, bucket)).run(topic.partitions) == ArchivePass(1, 0)
        assert front.methods().count("PUT") == 2
        assert "POST" not in front.methods()
    assert objects(open_bucket(moto_endpoint, bucket)) == sealed_files(disk, topic)


@pytest.mark.parametrize("fault", [refuse(503, "SlowDown"), refuse(500, "InternalError"), hang_up, carry_out_but_fail])
def test_a_passing_failure_is_not_noticed(moto_endpoint: str, bucket: str, fault: Fault) -> None:
    disk = FakeDisk()
    topic = filled_topic(disk)
    with front_of(moto_endpoint) as front:
        front.faults = [fault]
        assert Archiver(disk, DATA, open_bucket(front.endpoint, bucket)).run(topic.partitions) == ArchivePass(4, 0)
    assert objects(open_bucket(moto_endpoint, bucket)) == sealed_files(disk, topic)


@pytest.mark.parametrize("fault", [refuse(503, "SlowDown"), refuse(403, "AccessDenied"), hang_up])
def test_an_outage_ends_the_pass_and_the_next_one_goes_on(
    moto_endpoint: str, bucket: str, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """Appends and reads go on, nothing may be deleted, and no message shows the secret."""
    caplog.set_level(logging.DEBUG)
    disk = FakeDisk()
    topic = filled_topic(disk)
    with front_of(moto_endpoint) as front:
        archiver = Archiver(disk, DATA, open_bucket(front.endpoint, bucket))
        archiver.run(topic.partitions)
        front.persistent_fault = fault
        topic.fill(0, 1)
        assert archiver.run(topic.partitions) == ArchivePass(0, 2)
        assert "2 segments are not archived; the next pass tries again" in caplog.text
        assert SECRET not in caplog.text
        # Not even segments that were archived before: the archive cannot confirm them now.
        for segment in topic.partition(0).segments[:3]:
            assert archiver.must_stay(key_of(0), segment)
        assert len(topic.messages(0)) == 9
        front.persistent_fault = None
        assert archiver.run(topic.partitions) == ArchivePass(2, 0)
        assert not archiver.must_stay(key_of(0), topic.partition(0).segments[2])
    assert objects(open_bucket(moto_endpoint, bucket)) == sealed_files(disk, topic)


def test_an_object_that_vanished_protects_its_segment(moto_endpoint: str, bucket: str) -> None:
    disk = FakeDisk()
    topic = filled_topic(disk)
    store = open_bucket(moto_endpoint, bucket)
    archiver = Archiver(disk, DATA, store)
    archiver.run(topic.partitions)
    store.delete(name_of(0, ".log"))
    assert archiver.must_stay(key_of(0), topic.partition(0).segments[0])
    assert not archiver.must_stay(key_of(0), topic.partition(0).segments[1])


def test_requests_are_path_style_and_signed_with_the_keys_of_the_settings(moto_endpoint: str, bucket: str) -> None:
    with front_of(moto_endpoint) as front:
        open_bucket(front.endpoint, bucket).put(name_of(0, ".log"), b"data")
        for _, path, headers in front.requests:
            assert path.startswith(f"/{bucket}/{key_of(0)}/")
            assert "Credential=our-key/" in headers["authorization"]
            assert "/eu-west-1/s3/" in headers["authorization"]
            # The session token of the environment belongs to another key.
            assert "x-amz-security-token" not in headers
        assert front.methods() == ["PUT", "HEAD"]


def test_without_keys_in_the_settings_those_of_the_environment_sign(moto_endpoint: str, bucket: str) -> None:
    with front_of(moto_endpoint) as front:
        s3 = {"bucket": bucket, "endpoint": front.endpoint}
        settings = from_mapping({"data_maintenance": {"archiver": {"kind": "s3", "s3": s3}}})
        open_archive(RealFs(), DATA, settings).put(name_of(0, ".log"), b"data")
        assert {headers["x-amz-security-token"] for _, _, headers in front.requests} == {"of-another-account"}


@pytest.mark.parametrize(
    ("endpoint", "key_id", "message"),
    [
        ("here", "our-key", "the endpoint for S3 is not of the form http://host:port or https://host:port"),
        ("http://127.0.0.1:1", "our key", "the key id for S3 is empty or has blanks"),
        ("http://127.0.0.1:1", "", "the key id for S3 is empty or has blanks"),
    ],
)
def test_settings_that_cannot_be_meant_refuse_the_start_and_keep_the_secret(
    endpoint: str, key_id: str, message: str, bucket: str
) -> None:
    with pytest.raises(StartRefused, match=message) as caught:
        open_bucket(endpoint, bucket, key_id)
    assert SECRET not in str(caught.value)
