"""What callers of the embedded log pass in, checked and turned into what the engine takes."""

from collections.abc import Iterable

from topics.engine.queues.redrive import Redriven, RedriveSpec
from topics.engine.routers.definition import check_endpoints, check_router_name
from topics.engine.topic.router import Guarantee, RouterSpec
from topics.errors import InvalidRequest
from topics.limits import CLAIM_JOBS_MAX, NODE_BYTES_MAX, REDRIVE_SAMPLE_JOBS
from topics.protocol.tag_match import TagMatch
from topics.results import Job


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


def checked_redrive(spec: RedriveSpec) -> RedriveSpec:
    if spec.tag is not None and spec.tag_prefix is not None:
        raise InvalidRequest("redrive by a tag or by a prefix of it, not both")
    numbers = (spec.from_ts, spec.to_ts, spec.from_seq, spec.until_seq, spec.limit, spec.rate)
    if any(number is not None and number < 0 for number in numbers):
        raise InvalidRequest("times, seqs, limit and rate of a redrive are not negative")
    return spec


def rest_of_redrive(spec: RedriveSpec, part: Redriven) -> RedriveSpec:
    """What the next call does after one whose time was over. A key counts the jobs of earlier calls by itself."""
    limit = spec.limit
    if limit and (spec.key is None or spec.dry_run):
        limit -= part.matched
    return spec._replace(from_seq=part.next_from_seq, until_seq=part.until_seq, limit=limit)


def joined_redrives(spec: RedriveSpec, first: Redriven, second: Redriven) -> Redriven:
    """The answers to two calls of one redrive as one. Under a key the second one counts the jobs of the first."""
    counts_first = spec.key is not None and not spec.dry_run
    return second._replace(
        moved=second.moved + (0 if counts_first else first.moved),
        matched=second.matched + (0 if counts_first else first.matched),
        skipped=first.skipped + second.skipped,
        jobs=(first.jobs + second.jobs)[:REDRIVE_SAMPLE_JOBS],
    )


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
