"""What the OpenAPI document says about single members of bodies: their meaning, and limits that structs cannot say.

A meaning stands under the member's name, or under `Struct.member` where a struct means something else by it. A member
without a meaning fails a test.
"""

from typing import Any, Final

from topics.engine.writing.staging import WRITER_NAME_PATTERN
from topics.limits import IDEMPOTENCY_KEY_BYTES_MAX, META_MEMBERS_MAX, READ_BYTES_MAX
from topics.server.limits import LONG_POLL_MS_MAX
from topics.server.settings_schema import ServerSettings

MEANINGS: Final[dict[str, str]] = {
    # Topics.
    "topic": "Name of the topic.",
    "type": "Fixed when the topic is created.",
    "head_seq": "Highest seq that was given out; 0 if nothing was ever written.",
    "earliest_seq": "First live seq; `head_seq + 1` if there is none.",
    "next_seq": "`head_seq + 1`.",
    "count": "Live records.",
    "bytes": "Bytes of JSON in them, `data` and `meta`.",
    "created": "Whether this call created the topic.",
    "config": "The topic's config.",
    "effective_priority": "What the priority comes to, given or by recency.",
    "last_write_ts": "Milliseconds since the Unix epoch; null if this process has seen no write.",
    "last_read_ts": "Milliseconds since the Unix epoch; null if this process has seen no read.",
    "queue": "Queues only.",
    "ready": "Jobs that can be claimed.",
    "in_flight": "Jobs under an unexpired lease.",
    "dead_lettered": "Jobs moved to the dead-letter topic.",
    "topics": "The topics, names ascending.",
    "next_cursor": "For the next page; absent on the last.",
    "TopicDeleted.deleted": "False if there was no such topic.",
    "routers_removed": "Routers that touched the topic, sorted.",
    # Routers.
    "router": "Name of the router.",
    "routers": "Number of routers.",
    "RouterList.routers": "The routers, names ascending.",
    "source": "Topic that is copied from.",
    "dest": "Topic that is copied to. All routers into it have the same source.",
    "preserve_node": "Whether copies keep the node.",
    "preserve_tag": "Whether copies keep the tag.",
    "create_dest": "Whether a missing dest is created.",
    "filter": "Only records whose tag matches are copied; null = all.",
    "RouterBody.filter": "Copy only records whose tag is this, or begins with it: as `match` of a delete.",
    "allow_cycle": "Whether the router may close a cycle.",
    "guarantee": "`exactly_once` gives each copy a key, and copies nothing whose key a live record of the dest has.",
    "forwarded_total": "Records copied, trimmed, or found to be there already.",
    "PutRouter.created": "Whether this call created the router.",
    "RouterDeleted.deleted": "False if there was no such router.",
    # Config.
    "ttl_ms": "Age at which records expire; 0 = never.",
    "cap_records": "Records kept; 0 = unlimited.",
    "cap_bytes": "Bytes kept; 0 = unlimited.",
    "discard": "What happens at a cap: the oldest records go, or the write is refused.",
    "durable": "Short for `durability`: true is `fsync`, false is `disk`.",
    "durability": "What an acknowledged write survives. Wins over `durable`.",
    "priority": "Acts within -1000 to 1000; null = by recency.",
    "auto_priority": "Whether recency counts while `priority` is null.",
    "auto_create": "Whether a write that carries this config creates the topic when it says nothing else.",
    "idempotency_window_ms": "How long an idempotency key is remembered.",
    "dedupe_node": "Whether readers can leave out records of their own node.",
    "lease_ms": "How long a claimed job is leased; pulled into 100 to 86400000.",
    "claim_jitter_ms": "Window in which claims are served together; pulled down to 5000.",
    "max_deliveries": "Deliveries before a job is moved to `dead_letter`; 0 = unlimited.",
    "dead_letter": "Topic for jobs that were delivered too often. Not the queue itself.",
    "leases_durable": "Whether leases survive a restart.",
    # Writes.
    "records": "The records, seqs ascending.",
    "WriteBody.records": "What to append, in this order.",
    "data": "The payload: any JSON, given back byte for byte.",
    "meta": "More about the payload: any JSON, usually an object.",
    "tag": "Label to delete by.",
    "node": "Who wrote it, so that readers can leave out their own records.",
    "WriteBody.node": "For records that name none.",
    "DiffBody.node": "Leave out records of this node, or of these.",
    "idempotency_key": "A repeat under this key appends nothing and gets the first answer again.",
    "create": "True creates a missing topic, false refuses it with 404; else `config.auto_create` decides.",
    "WriteBody.config": "For a topic that this write creates.",
    "disable_backpressure": "Waits for room where load would refuse the write; opts out of no caps.",
    "first_seq": "Seq of the first record of this write.",
    "last_seq": "Seq of the last one.",
    "seqs": "All of them; absent with `return_seqs=false`.",
    "Appended.head_seq": "Head right after this write.",
    "Appended.count": "Records of this write.",
    "deduped": "Whether these records had been appended before, under the same key.",
    # Reads.
    "from_seq": "Cursor: records behind this seq.",
    "limit": "Records at most; 0 = the default; pulled down to what the server allows.",
    "include_tags": "Whether records show `$tag`.",
    "include_meta": "Whether records show `meta`.",
    "wait_ms": f"How long to wait for an append when there is nothing; pulled down to {LONG_POLL_MS_MAX}.",
    "max_batch_bytes": f"Bytes of one page, which has at least one record; 0 = the default, at most {READ_BYTES_MAX}.",
    "$seq": "Place in the topic.",
    "$ts": "When it was appended, in milliseconds since the Unix epoch.",
    "$node": "Who wrote it.",
    "$tag": "Its tag, if the reader asked for tags.",
    "next_from_seq": "Cursor for the next read: the last seq that was looked at.",
    "caught_up": "Whether nothing was left.",
    "tombstone": "Records that are gone involuntarily, or null.",
    "lag": "`head_seq - next_from_seq`.",
    "gap_from": "First seq that is gone.",
    "gap_to": "Last seq that is gone.",
    "reason": "What took them.",
    "missed_estimate": "How many records that may have been.",
    "Tombstone.earliest_seq": "First seq behind the gap.",
    # Files.
    "ManifestBody.from_seq": "First seq.",
    "to_seq": "Last seq; null = the head.",
    "from_ts": "Earliest time, in milliseconds since the Unix epoch.",
    "to_ts": "Time before which records were appended; null = any.",
    "pin_ms": "How long the files shall stay where they are; pulled down to an hour, 0 = no pin.",
    "store_id": "Random, and in the file STORE of every tier: tells it from an equal path on another machine.",
    "topic_id": "Never used again, also when a topic of this name is made anew.",
    "epoch": "Tells instances of one name apart.",
    "durable_seq": "Up to here a power loss takes nothing; perhaps less than could be said.",
    "evict_floor": "Records below are gone by caps or age, also where a file still has them.",
    "cap_floor": "Last seq that went because the topic reached its cap; 0 = none did.",
    "ttl_floor": "Last seq that went because of its age; 0 = none did.",
    "trim_floor": "Last seq that a router could not copy any more; 0 = none.",
    "delete_below": "Records below were deleted.",
    "lost_ranges": "First and last seqs that went with a power loss.",
    "checkpointed_seq": "Up to here records are in segments.",
    "pending_deletes": "First and last seqs of records that are deleted and not yet marked so in their files.",
    "segments": "Side by side, seqs ascending; none overlap.",
    "pin": "Until when the files stay; null without a pin.",
    "ManifestSegment.first_seq": "First seq it covers.",
    "ManifestSegment.last_seq": "Last seq it covers.",
    "tier": "Where it is.",
    "uri": "Of its `.data`; its `.idx` lies beside it.",
    "data_len": "Bytes of `.data` that count; the file may have grown since.",
    "idx_len": "Bytes of `.idx` that count.",
    "min_ts": "Time of its first record.",
    "max_ts": "Time of its last record.",
    "ManifestSegment.records": "Seqs it covers, records or not.",
    "live": "Records in it that are live.",
    "sealed": "Whether it never changes any more, but for delete bytes.",
    "digest": "XXH3-128 over the checksums of its frames: its identity; empty while it is not sealed.",
    "PinState.id": "Number of the pin.",
    "until": "When the pin ends, in milliseconds since the Unix epoch.",
    "sealed_seq": "Last seq that is in a sealed segment; 0 when none is.",
    "TopicSealed.segments": "How many sealed segments there are.",
    "ReplaceBody.first_seq": "First seq of the segment.",
    "expect_digest": "Digest that the segment must have, as in a manifest.",
    "ReplaceBody.data": "Name of the new `.data` in the folder `staging` of the data directory.",
    "idx": "Name of its `.idx`, beside it.",
    "SegmentReplaced.first_seq": "First seq it covers, as before.",
    "SegmentReplaced.last_seq": "Last seq it covers, as before.",
    "SegmentReplaced.removed": "Deleted records that are not in the file any more.",
    # Deletes.
    "before_seq": "Records below this seq.",
    "match": 'Records with this tag (`"v"`, `["tag","Eq","v"]`) or prefix (`"p*"`, `["tag","Glob","p*"]`).',
    "deleted": "Records deleted by this call.",
    "Deleted.count": "Live records left.",
    # Queues.
    "ClaimBody.node": "Who claims.",
    "AckBody.node": "Who has the jobs.",
    "NackBody.node": "Who has the jobs.",
    "ExtendBody.node": "Who has the jobs.",
    "max": "Jobs at most; 0 = 1; pulled down to what the server allows.",
    "ClaimBody.lease_ms": "How long the jobs are leased, pulled into 100 to 86400000; null = as the queue says.",
    "ExtendBody.lease_ms": "How long the jobs are leased from now on; pulled into 100 to 86400000.",
    "AckBody.seqs": "The jobs.",
    "NackBody.seqs": "The jobs.",
    "ExtendBody.seqs": "The jobs.",
    "lease_ids": "Which lease of each job is meant, as many as seqs, or none; empty for whichever the node has.",
    "delay_ms": "How long nobody gets the jobs; pulled down to 86400000.",
    "claimed": "The jobs, seqs ascending.",
    "Claimed.count": "Jobs of this answer.",
    "lease_id": "Names this delivery: only its holder can ack by it.",
    "deadline": "When the lease ends, in milliseconds since the Unix epoch.",
    "deliveries": "How often the job was delivered, this time included.",
    "acked": "Jobs deleted by this call.",
    "nacked": "Jobs given back by this call.",
    "extended": "Jobs leased on by this call.",
    "skipped": "Seqs that were not acted on, in the order of the call.",
    "deadlines": "New deadline of each job, by seq.",
    # Watching.
    "WatchBody.topics": "What to follow, by name; `orders.*` is all topics that begin so, later ones included.",
    "WatchBody.node": "Leave out records of this node, or of these.",
    "tail": "Whether to begin at the head, whatever `from_seq` says.",
    "heartbeat_ms": "Silence after which a comment is sent; pulled into 1000 to 60000.",
    "include_data": "Whether records show `data`.",
    "consistency": "`strong` pushes records only once they are synced, whatever their class.",
    "wid": "Names the session.",
    "stream_url": "Where its stream is.",
    "session_ttl_ms": "How long the session stays without a stream.",
    "WatchCreated.topics": "Where each topic begins, by name.",
    "WatchedTopic.from_seq": "Where the stream begins: behind this seq.",
    "ticket": "With keys: good as `token` of the stream, once, for 30 seconds.",
    # Staged writes.
    "writer": "Whose work it is: 1 to 128 letters, digits and `. _ : -`.",
    "StageBody.epoch": "Number of the work: it counts up, and a commit that is not above the last one adds nothing.",
    "StageBody.records": "What to keep.",
    "part": "Number of the part of the epoch: parts are appended in this order.",
    "attempt": "Which try at the part: a commit takes one of them.",
    "chunk": "Number of the chunk of that try at the part, from 0.",
    "Staged.epoch": "Number of the work.",
    "Staged.records": "Records of the chunk.",
    "Staged.deduped": "Whether it was there before, or the epoch is committed already.",
    "EpochBody.epoch": "Number of the work.",
    "parts": "What to append. Of each part one try.",
    "PartBody.chunks": "How many chunks the part has; 0 if it is empty.",
    "PartBody.records": "How many records they have in all.",
    "EpochCommitted.epoch": "Number of the work.",
    "EpochCommitted.first_seq": "Seq of the first record; null for an epoch below the highest.",
    "EpochCommitted.last_seq": "Seq of the last record; one less than `first_seq` if there is none.",
    "EpochCommitted.count": "Records appended, now or then.",
    "EpochCommitted.deduped": "Whether it was committed before, and nothing was appended now.",
    "WriterEpochs.topics": "The topics that it has committed to, by name.",
    "WriterTopic.epoch": "The highest that was committed.",
    "WriterTopic.first_seq": "Seq of its first record.",
    "WriterTopic.last_seq": "Seq of its last record; one less than `first_seq` if there is none.",
    "AbortBody.epoch": "Number of the work.",
    "EpochAborted.epoch": "Number of the work.",
    "dropped": "Chunks that were dropped.",
    # Consumer groups.
    "group": "Name of the consumer group.",
    "DiffBody.group": "A consumer group: without `from_seq`, or with 0, the read begins behind its cursor.",
    "groups": "The consumer groups of the topic, by name.",
    "GroupBody.seq": "The last seq that is done; at most `head_seq`.",
    "CommitBody.seq": "The last seq that is done; at most `head_seq`.",
    "from": "Before the first record that can be read, or behind the last one. Not together with `seq`.",
    "rewind": "Whether a lower seq moves the cursor back.",
    "seq": "The last seq that is done.",
    "GroupEntry.lag": "`head_seq - seq`: seqs to go, some of which may be gone.",
    "GroupState.lag": "`head_seq - seq`: seqs to go, some of which may be gone.",
    "PutGroup.lag": "`head_seq - seq`: seqs to go, some of which may be gone.",
    "Committed.lag": "`head_seq - seq`: seqs to go, some of which may be gone.",
    "last_commit_ts": "When the cursor was last moved, in milliseconds since the Unix epoch.",
    "PutGroup.created": "Whether this call created the group.",
    "moved": "Whether this call moved the cursor.",
    "GroupDeleted.deleted": "False if there was no such group.",
    # Operations.
    "performance": "Where the time went.",
    "server_total_ms": "From the request to its answer.",
    "wal_append_ms": "Until the write was in the log.",
    "fsync_ms": "Until the log was synced; 0 unless the class is `fsync`.",
    "throttle_wait_ms": "How long a write with `disable_backpressure` waited for room; absent if it did not.",
    "records_scanned": "Slots looked at, delivered or skipped.",
    "cold_segments_read": "Records that came from the cold tier; absent if none did.",
    "status": "Always this.",
    "version": "Version of the server.",
    "uptime_ms": "Since the start.",
    "features": "What this server can do beyond the first contract.",
    "wal_replay_complete": "Always true here.",
    "Ready.topics": "Number of topics.",
    "MetricsJson.topics": "Number of topics.",
    "MetricsJson.ready": "Whether every write can be taken.",
    "topics_ephemeral": "Topics of this class.",
    "topics_memory": "Topics of this class.",
    "topics_disk": "Topics of this class.",
    "topics_fsync": "Topics of this class.",
    "records_live": "Live records of all topics.",
    "bytes_live": "Bytes in them.",
    "queue_topics": "Topics that are queues.",
    "queue_leases_in_flight": "Unexpired leases.",
    "sse_connections": "Open streams.",
    "watch_sessions": "Watch sessions.",
    "replay_progress": "How much of the log is recovered, from 0 to 1.",
    "wal": "The write-ahead log.",
    "fsyncs": "Syncs.",
    "frames": "Frames written.",
    "batches": "Groups of writes, each written at once.",
    "bytes_written": "Bytes written.",
    "rotations": "Log files begun after the first.",
    "queue_depth": "Writes that wait for their commit.",
    "queue_depth_peak": "The most of them since the start.",
    "submit_full_total": "Writes refused by a full commit queue.",
    "read_only": "Whether a shard takes no writes until a restart.",
    "fsync_count": "Syncs.",
    "fsync_micros_total": "Microseconds spent in them.",
    # Errors.
    "error": "Only failures have this member.",
    "code": "Stable.",
    "message": "For people.",
    "detail": "What a program may decide by.",
}

_LEASE_ID: Final = "^(lease_[0-9a-fA-F]{1,16})?$"
_TEXT: Final = {"type": "string"}
_MATCH: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "prefixItems": [{"const": "tag"}, {"const": "Eq"}, _TEXT], "minItems": 3, "maxItems": 3},
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Glob"}, {"type": "string", "pattern": "\\*$"}],
            "minItems": 3,
            "maxItems": 3,
        },
        {"type": "null"},
    ],
    "default": None,
}
# One condition at least, and a null is none.
_SOME_CONDITION: Final = [
    {"required": ["before_seq"], "properties": {"before_seq": {"type": "integer"}}},
    {"required": ["match"], "properties": {"match": {"type": ["string", "array"]}}},
]
# A null is none.
_BOTH_PLACES: Final = {
    "required": ["seq", "from"],
    "properties": {"seq": {"type": "integer"}, "from": {"type": "string"}},
}


def meaning(shape: str, member: str) -> str | None:
    return MEANINGS.get(f"{shape}.{member}", MEANINGS.get(member))


def add_limits(components: dict[str, Any], settings: ServerSettings, name_pattern: str) -> None:
    """Puts what handlers check by themselves into the schemas, with the numbers that this server was started with."""

    def limit_bytes(shape: str, member: str, bytes_max: int) -> None:
        # A schema counts characters: the bound is necessary, and enough for ASCII.
        text = _branch(components[shape]["properties"][member], "string")
        text["maxLength"] = bytes_max
        text["x-max-bytes"] = bytes_max

    limit_bytes("RecordBody", "tag", settings.max_tag_bytes)
    limit_bytes("RecordBody", "node", settings.max_node_bytes)
    for shape in ("WriteBody", "StageBody"):
        limit_bytes(shape, "node", settings.max_node_bytes)
        components[shape]["properties"]["records"] |= {"minItems": 1, "maxItems": settings.max_batch_records}
    components["StageBody"]["properties"]["writer"]["pattern"] = f"^{WRITER_NAME_PATTERN}$"
    limit_bytes("WriteBody", "idempotency_key", IDEMPOTENCY_KEY_BYTES_MAX)
    _branch(components["ConfigBody"]["properties"]["dead_letter"], "string")["pattern"] = name_pattern
    record = components["RecordBody"]
    record["x-max-bytes"] = settings.max_record_bytes
    record["properties"]["meta"] |= {"maxProperties": META_MEMBERS_MAX, "x-max-bytes": settings.max_meta_bytes}
    components["DiffBody"]["properties"]["limit"]["x-clamped-to"] = settings.max_limit
    watch = components["WatchBody"]["properties"]
    watch["topics"] |= {"minProperties": 1, "maxProperties": settings.max_watch_topics}
    watch["limit"]["x-clamped-to"] = settings.max_limit
    components["ClaimBody"]["properties"]["max"]["x-clamped-to"] = settings.max_claim
    limit_bytes("ClaimBody", "node", settings.max_node_bytes)
    for shape in ("ClaimBody", "AckBody", "NackBody", "ExtendBody"):
        components[shape]["properties"]["node"]["minLength"] = 1
    for shape in ("AckBody", "NackBody", "ExtendBody"):
        members = components[shape]["properties"]
        members["seqs"]["maxItems"] = settings.max_claim
        members["lease_ids"] |= {"maxItems": settings.max_claim, "items": {"type": "string", "pattern": _LEASE_ID}}
    components["GroupBody"]["not"] = _BOTH_PLACES
    delete = components["DeleteBody"]
    delete["properties"]["match"] |= _MATCH
    delete["anyOf"] = _SOME_CONDITION


def _branch(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    """The part of a schema that is about values of this type."""
    found: dict[str, Any] = next(
        (part for part in schema.get("anyOf", ()) if part.get("type") == kind),
        schema,
    )
    assert found.get("type") == kind
    return found
