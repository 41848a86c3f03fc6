"""What clients ask about the server itself: statistics, clients, the cluster, snapshots. Handlers run on threads."""

import io
import os
import resource
import threading
import zipfile
from time import perf_counter
from typing import Any, Final

from topics.protocol.iggy.answers import (
    NO_USER_ID,
    ROLE_LEADER,
    STATUS_HEALTHY,
    TRANSPORT_TCP,
    ClientGroupRecord,
    ClientRecord,
    Cluster,
    NodeRecord,
    Stats,
    encode_records,
)
from topics.protocol.iggy.codes import Code
from topics.server.process_figures import resident_bytes
from topics.server.streams.session import Handler, Session
from topics.stream_errors import StreamsError, StreamStatus
from topics.streams.directory.disk_space import disk_space
from topics.streams.metadata.permissions import Action
from topics.streams.settings import to_toml
from topics.version import VERSION

CLUSTER_NAME: Final = "single-node"
NODE_NAME: Final = "iggy-node"
# The Apache Iggy server whose protocol this is: 0.8.0.
PROTOCOL_SEMVER: Final = 8000

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_began_s: Final = perf_counter()


# Clients.


def _client_record(session: Session, groups_count: int) -> ClientRecord:
    user_id = session.user_id
    return ClientRecord(
        session.client_id, NO_USER_ID if user_id is None else user_id, TRANSPORT_TCP, session.peer, groups_count
    )


def _client_details(session: Session) -> bytes:
    joined = session.system.memberships().get(session.client_id, [])
    groups = [ClientGroupRecord(*membership) for membership in joined]
    return encode_records(_client_record(session, len(groups)), *groups)


def _get_me(session: Session, _request: Any) -> bytes:
    session.check_logged_in()
    if not session.is_registered:
        raise StreamsError(StreamStatus.CLIENT_NOT_FOUND, "the client has missed its heartbeats")
    return _client_details(session)


def _get_client(session: Session, request: Any) -> bytes:
    session.allow(Action.READ_SERVERS)
    if request.client_id == 0:
        raise StreamsError(StreamStatus.INVALID_CLIENT_ID, "0 is no id of a client")
    found = session.service.clients.get(request.client_id)
    return b"" if found is None else _client_details(found)


def _get_clients(session: Session, _request: Any) -> bytes:
    session.allow(Action.READ_SERVERS)
    joined = session.system.memberships()
    clients = list(session.service.clients.values())
    return encode_records(*(_client_record(each, len(joined.get(each.client_id, ()))) for each in clients))


# Statistics.


def _get_stats(session: Session, _request: Any) -> bytes:
    session.allow(Action.READ_SERVERS)
    system, service = session.system, session.service
    states = system.stream_states()
    topics = [topic for stream in states for topic in stream.topics]
    partitions = [partition for topic in topics for partition in topic.partitions]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    running_s = max(perf_counter() - _began_s, 1e-6)
    machine = os.uname()
    space = disk_space(service.host.directory)
    stats = Stats(
        process_id=os.getpid(),
        cpu_usage=100 * (usage.ru_utime + usage.ru_stime) / running_s,
        total_cpu_usage=100 * os.getloadavg()[0] / (os.cpu_count() or 1),
        memory_usage=resident_bytes() or 0,
        total_memory=os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES,
        available_memory=os.sysconf("SC_AVPHYS_PAGES") * _PAGE_BYTES,
        run_time=service.clock.now_ms() * 1000 - service.started_us,
        start_time=service.started_us,
        read_bytes=service.counters.bytes_received,
        written_bytes=service.counters.bytes_sent,
        messages_size_bytes=sum(topic.size_bytes for topic in topics),
        streams_count=len(states),
        topics_count=len(topics),
        partitions_count=len(partitions),
        segments_count=sum(partition.segments_count for partition in partitions),
        messages_count=sum(topic.messages_count for topic in topics),
        clients_count=len(service.clients),
        consumer_groups_count=sum(len(topic.info.groups) for topic in topics),
        hostname=machine.nodename,
        os_name=machine.sysname,
        os_version=machine.version,
        kernel_version=machine.release,
        server_version=VERSION,
        server_semver=PROTOCOL_SEMVER,
        caches=(),
        threads_count=threading.active_count(),
        free_disk_space=space.free_bytes,
        total_disk_space=space.total_bytes,
    )
    return encode_records(stats)


def _get_cluster(session: Session, _request: Any) -> bytes:
    """Always one node: with more than one, a client may connect to another address than it was given."""
    session.check_logged_in()
    ip, port = session.service.host.address or ("", 0)
    node = NodeRecord(NODE_NAME, ip, port, 0, 0, 0, ROLE_LEADER, STATUS_HEALTHY)
    return encode_records(Cluster(CLUSTER_NAME, (node,)))


# Snapshots.

_STORED: Final = 1
_DEFLATED: Final = 2
_COMPRESSIONS: Final = range(1, 7)
_ALL_TYPES: Final = 100


def _filesystem_overview(session: Session) -> str:
    space = disk_space(session.service.host.directory)
    lines = [f"free_bytes {space.free_bytes}", f"total_bytes {space.total_bytes}"]
    lines += [
        f"stream {stream.info.id} topic {topic.info.id} partition {partition.id}: "
        f"{partition.segments_count} segments, {partition.size_bytes} bytes"
        for stream in session.system.stream_states()
        for topic in stream.topics
        for partition in topic.partitions
    ]
    return "\n".join(lines)


def _process_list(_session: Session) -> str:
    names = sorted(thread.name for thread in threading.enumerate())
    return "\n".join([f"process {os.getpid()}", *(f"thread {name}" for name in names)])


def _resource_usage(_session: Session) -> str:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return "\n".join(f"{name} {getattr(usage, name)}" for name in dir(usage) if name.startswith("ru_"))


def _test(_session: Session) -> str:
    return "test"


def _server_config(session: Session) -> str:
    return to_toml(session.system.settings)


# The logs of this server go to stderr, so there is none to give (type 5).
_SNAPSHOT_TYPES: Final = {
    1: ("filesystem_overview", _filesystem_overview),
    2: ("process_list", _process_list),
    3: ("resource_usage", _resource_usage),
    4: ("test", _test),
    6: ("server_config", _server_config),
}
_SERVER_LOGS: Final = 5


def _get_snapshot(session: Session, request: Any) -> bytes:
    session.allow(Action.READ_SERVERS)
    if request.compression not in _COMPRESSIONS:
        raise StreamsError(StreamStatus.INVALID_COMMAND, f"{request.compression} is no compression of a snapshot")
    if request.compression not in (_STORED, _DEFLATED):
        raise StreamsError(StreamStatus.FEATURE_UNAVAILABLE, "snapshots are stored or deflated")
    types = set(request.types)
    if _ALL_TYPES in types:
        if len(request.types) > 1:
            raise StreamsError(StreamStatus.INVALID_COMMAND, "all types, and another one")
        types = {1, 2, 3, 5, 6}
    unknown = types - _SNAPSHOT_TYPES.keys() - {_SERVER_LOGS}
    if unknown:
        raise StreamsError(StreamStatus.INVALID_COMMAND, f"{min(unknown)} is no type of a snapshot")
    file = io.BytesIO()
    method = zipfile.ZIP_STORED if request.compression == _STORED else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(file, "w", method) as archive:
        for kind in sorted(types & _SNAPSHOT_TYPES.keys()):
            name, text = _SNAPSHOT_TYPES[kind]
            archive.writestr(f"{name}.txt", text(session))
    return file.getvalue()


SERVER_COMMANDS: Final[dict[int, Handler]] = {
    Code.GET_STATS: _get_stats,
    Code.GET_SNAPSHOT: _get_snapshot,
    Code.GET_CLUSTER_METADATA: _get_cluster,
    Code.GET_ME: _get_me,
    Code.GET_CLIENT: _get_client,
    Code.GET_CLIENTS: _get_clients,
}
