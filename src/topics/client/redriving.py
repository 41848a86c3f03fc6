"""A redrive that is longer than one request may take: what the next request asks for, and what all of them did. Pure.

Every redrive has a key. Under it the server counts the jobs that earlier requests moved, also when an answer was lost.
"""

from __future__ import annotations

from uuid import uuid4

import msgspec

from topics.client.answers import decoded
from topics.client.calls import Call, encode, tag_match, topic_path
from topics.limits import REDRIVE_MS, REDRIVE_SAMPLE_JOBS
from topics.protocol.request_body import RedriveBody
from topics.protocol.response_body import Redriven


class Redrive:
    """One redrive, over all its requests."""

    def __init__(
        self,
        topic: str,
        *,
        to: str | None,
        tag: str | None,
        tag_prefix: str | None,
        from_ts: int,
        to_ts: int | None,
        from_seq: int,
        until_seq: int | None,
        limit: int,
        rate: int,
        dry_run: bool,
        key: str | None,
    ) -> None:
        self._topic = topic
        self._body = RedriveBody(
            to=to,
            match=tag_match(tag, tag_prefix),
            from_ts=from_ts,
            to_ts=to_ts,
            from_seq=from_seq,
            until_seq=until_seq,
            limit=limit,
            rate=rate,
            dry_run=dry_run,
            idempotency_key=uuid4().hex if key is None else key,
        )
        self._done: Redriven | None = None

    def next(self) -> Call[Redriven]:
        """The next request."""
        target = f"{topic_path(self._topic)}/redrive"
        return Call("POST", target, encode(self._body), decoded(Redriven), wait_ms=REDRIVE_MS)

    def answered(self, part: Redriven) -> Redriven | None:
        """Takes an answer. Gives what all requests did, when there is no next one."""
        limit = self._body.limit
        if limit and self._body.dry_run:
            limit -= part.matched
        done = part if self._done is None else self._joined(self._done, part)
        if part.stopped != "time":
            return done
        self._done = done
        self._body = msgspec.structs.replace(
            self._body, from_seq=part.next_from_seq, until_seq=part.until_seq, limit=limit
        )
        return None

    def _joined(self, first: Redriven, second: Redriven) -> Redriven:
        # A dry run has nothing to count under its key.
        is_apart = self._body.dry_run
        return msgspec.structs.replace(
            second,
            matched=second.matched + (first.matched if is_apart else 0),
            skipped=first.skipped + second.skipped,
            jobs=(first.jobs + second.jobs)[:REDRIVE_SAMPLE_JOBS],
        )
