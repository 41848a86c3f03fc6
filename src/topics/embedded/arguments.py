"""What callers of the embedded log pass in, checked and turned into what the engine takes."""

from collections.abc import Iterable
from typing import TypedDict

from topics.engine.config import Discard, Durability, TopicType
from topics.engine.queues.jobs import Job
from topics.engine.routers.definition import check_endpoints, check_router_name
from topics.engine.topic.router import Guarantee, RouterSpec
from topics.errors import InvalidRequest
from topics.limits import CLAIM_JOBS_MAX, NODE_BYTES_MAX
from topics.protocol.tag_match import TagMatch


class ConfigMembers(TypedDict, total=False):
    """The config members of the HTTP contract: see `docs/http.md`. Members that are not given have their defaults."""

    type: TopicType
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Discard
    durability: Durability
    durable: bool
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool


def checked_node(node: str) -> str:
    if not 0 < len(node.encode()) <= NODE_BYTES_MAX:
        raise InvalidRequest(f"node names the worker that has the jobs: 1 to {NODE_BYTES_MAX} bytes")
    return node


def checked_max_jobs(max_jobs: int) -> int:
    """Above the bound a claim gets as many jobs as the bound says."""
    if max_jobs < 1:
        raise InvalidRequest("max_jobs is at least 1")
    return min(max_jobs, CLAIM_JOBS_MAX)


def checked_ms(name: str, ms: int | None) -> int | None:
    if ms is not None and ms < 0:
        raise InvalidRequest(f"{name} is not negative")
    return ms


def wait_s(wait_ms: int | None) -> float | None:
    """How long to wait, in seconds; None for a wait without end."""
    checked_ms("wait_ms", wait_ms)
    return None if wait_ms is None else wait_ms / 1000


def named_jobs(jobs: Iterable[Job | int]) -> tuple[list[int], list[int | None]]:
    """(seqs, lease ids). A job means the lease that it came with, a seq any lease of the node."""
    named = list(jobs)
    seqs = [job.seq if isinstance(job, Job) else job for job in named]
    return seqs, [job.lease_id if isinstance(job, Job) else None for job in named]


def skipped_nodes(nodes: Iterable[str]) -> frozenset[bytes] | None:
    if isinstance(nodes, str):
        raise InvalidRequest("skip_nodes is a list of nodes: put a single node into a list")
    return frozenset(node.encode() for node in nodes) or None


def checked_router(
    name: str,
    source: str,
    dest: str,
    *,
    tag: str | None,
    tag_prefix: str | None,
    preserve_node: bool,
    preserve_tag: bool,
    allow_cycle: bool,
    guarantee: Guarantee,
    create_dest: bool,
) -> RouterSpec:
    check_router_name(name)
    if tag is not None and tag_prefix is not None:
        raise InvalidRequest("a router copies records with a tag or with a tag_prefix: give one of them")
    if guarantee not in ("at_least_once", "exactly_once"):
        raise InvalidRequest(f'guarantee is {guarantee!r}: choose "at_least_once" or "exactly_once"')
    tag_filter = None
    if tag is not None:
        tag_filter = TagMatch(tag, is_prefix=False)
    elif tag_prefix is not None:
        tag_filter = TagMatch(tag_prefix, is_prefix=True)
    spec = RouterSpec(
        source=source,
        dest=dest,
        preserve_node=preserve_node,
        preserve_tag=preserve_tag,
        filter=tag_filter,
        allow_cycle=allow_cycle,
        guarantee=guarantee,
        create_dest=create_dest,
    )
    check_endpoints(spec)
    return spec
