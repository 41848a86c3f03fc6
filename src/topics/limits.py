"""Every named bound, with its unit in the name. Values that users may set are defaults here."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Records and writes.
BATCH_RECORDS_MAX: Final = 10_000
RECORD_BYTES_MAX: Final = MIB
META_BYTES_MAX: Final = 16 * KIB
META_MEMBERS_MAX: Final = 64
TAG_BYTES_MAX: Final = 256
NODE_BYTES_MAX: Final = 128
IDEMPOTENCY_KEY_BYTES_MAX: Final = 256
# Most keys in one frame, when a topic that was ephemeral logs the keys that its window still covers.
KEYS_PER_NOTE_MAX: Final = 1000
JSON_DEPTH_MAX: Final = 127
TOPIC_NAME_BYTES_MAX: Final = 255

# Reads.
READ_LIMIT_DEFAULT: Final = 256
READ_LIMIT_MAX: Final = 1000
READ_BYTES_DEFAULT: Final = MIB
READ_BYTES_MAX: Final = 8 * MIB
# A page examines at most this many slots for each record that it may hold, and at least READ_SLOTS_MAX. The next page
# examines the rest of a long run of dead or filtered slots.
READ_SLOTS_PER_RECORD_MAX: Final = 10
READ_SLOTS_MAX: Final = 5000
# A page is read in at most this many pieces. Each piece after the first one covers at least this much of a file.
READ_PIECES_MAX: Final = 256
READ_PIECE_SLOTS_MIN: Final = 256
READ_PIECE_BYTES_MIN: Final = 64 * KIB
# Segments that are looked into ahead of one read.
FETCH_SEGMENTS_MAX: Final = 16

# Queues.
CLAIM_JOBS_MAX: Final = 1000
DELAY_MS_MAX: Final = 86_400_000
# Lease ids that one start reserves: more than it can give out.
RESERVE_LEASE_IDS: Final = 2**32
# Jobs that one pass of claims moves to the dead-letter topic: each job is a separate write.
DEAD_LETTERS_PER_PASS_MAX: Final = 100

# What the holder of a job may say when it gives the job back.
NACK_REASON_BYTES_MAX: Final = 1024
# What a redrive looks at and moves in one turn of the owner.
REDRIVE_BATCH_JOBS: Final = 250
REDRIVE_BATCH_BYTES: Final = MIB
# How long one call of a redrive may take, by default and at most.
REDRIVE_MS: Final = 10_000
REDRIVE_MS_MAX: Final = 30_000
REDRIVE_KEY_BYTES_MAX: Final = 200
# Jobs that a dry run shows.
REDRIVE_SAMPLE_JOBS: Final = 10

# Consumer groups.
GROUPS_PER_TOPIC_MAX: Final = 1000

# Staged writes.
WRITER_NAME_BYTES_MAX: Final = 128
WRITERS_PER_TOPIC_MAX: Final = 10_000
STAGED_CHUNKS_MAX: Final = 100_000
STAGED_KEEP_MS: Final = 86_400_000
# A chunk that is staged again is written again, with a new time, if its time is older than this.
STAGED_TOUCH_MS: Final = 3_600_000
STAGED_SWEEP_MS: Final = 60_000
# What a commit puts into the log in one turn of its owner.
COMMIT_TURN_BYTES: Final = 2 * MIB

# A batch with more bytes than the first limit goes into the log over several turns, the second limit in each turn.
LONG_WRITE_BYTES: Final = MIB
LONG_WRITE_TURN_BYTES: Final = MIB // 2

# Routers.
ROUTERS_MAX: Final = 10_000
# A record that was copied from topic to topic this often is not copied again.
ROUTER_HOPS_MAX: Final = 8
# Source records that one pass of one router examines.
FORWARD_SLOTS_MAX: Final = 1024
# A pass ends with the record that makes its copies as large as this.
FORWARD_BYTES_MAX: Final = MIB
# Passes of routers in one turn of the owner. A turn also ends when they have examined `FORWARD_SLOTS_MAX` records.
FORWARD_STEPS_PER_TURN_MAX: Final = 8
# A router whose source cannot be read tries again after the first time, then after twice the time, up to the last.
FORWARD_RETRY_MS_MIN: Final = 100
FORWARD_RETRY_MS_MAX: Final = 10_000
# Dest records that one pass of an exactly_once router looks through for its keys.
SEARCH_SLOTS_MAX: Final = 64 * 1024

# Topics.
TOPICS_MAX: Final = 100_000
U64_MAX: Final = 2**64 - 1

# WAL.
WAL_FILE_BYTES: Final = 64 * MIB
WAL_QUEUE_SUBMISSIONS_MAX: Final = 4096
WAL_SHARDS_MAX: Final = 8
# The largest body of any frame: a record at its limits with tag, node and envelope is far below.
FRAME_BYTES_MAX: Final = 32 * MIB
SYNC_MARK_DELAY_MS: Final = 1000
# Unsynced data is synced in the background at the first tick after this long; together they bound the loss
# window of `memory` and `disk` by 100 ms.
BACKGROUND_SYNC_MS: Final = 50
TICK_MS: Final = 50
# How often an engine looks for work that is due by time while it has nothing to do.
SLOW_TICK_MS: Final = 1000

# Disk-class head reservations, in seqs.
RESERVE_SEQS_MIN: Final = 256
RESERVE_SEQS_MAX: Final = 65_536

# Checkpoints and segments.
CHECKPOINT_WAL_BYTES: Final = 64 * MIB
CHECKPOINT_INTERVAL_MS: Final = 60_000
# Checkpoints in an interval while files can be removed: one takes expired segments out of the newest snapshot, the next
# one out of both kept snapshots, so the files are gone before the interval ends.
CLEANING_CHECKPOINTS: Final = 3
# Time after which a failed checkpoint is tried again.
CHECKPOINT_RETRY_MS: Final = 1000
# How long a stop waits for the last checkpoint of a worker that may hang.
STOP_MS_MAX: Final = 30_000
# Writers wait while this many checkpoints' worth of WAL is in no segment, because those records are in memory.
CHECKPOINTS_BEHIND_MAX: Final = 4
# Bytes of segments with many deleted records that one checkpoint writes again. A single larger segment is written, too.
REWRITE_BYTES_MAX: Final = 16 * MIB
SEGMENT_EVENTS_MAX: Final = 10_000
SEGMENT_BYTES_MAX: Final = 64 * MIB
SEGMENT_AGE_MS_MAX: Final = 3_600_000
HOT_RETAIN_SEGMENTS: Final = 4
SNAPSHOTS_KEPT: Final = 2
# Ranges of cold segments kept in memory for readers.
COLD_CACHE_BYTES: Final = 64 * MIB
# A failed read of the cold tier that took this long means that the tier hangs: other reads fail at once for a while.
COLD_HUNG_MS: Final = 2000
COLD_HUNG_PAUSE_MS: Final = 5000
# How long a start waits for the cold tier to say whose it is.
COLD_CLAIM_MS_MAX: Final = 5000
# Threads that wait for the cold tier, and how many of them the calls of one topic may take.
COLD_THREADS_MAX: Final = 8
COLD_THREADS_PER_TOPIC_MAX: Final = 4
# Calls that wait for one of these threads.
COLD_WAITING_MAX: Final = 256
COLD_WAITING_PER_TOPIC_MAX: Final = 64
# A call that is not done after this time fails, whether or not a thread has begun it.
COLD_CALL_MS_MAX: Final = 20_000
# Cold segments whose times and sizes of single records are in memory, over all topics.
COLD_COLUMNS_MAX: Final = 64
# Time after which columns that could not be read are asked for again.
COLD_COLUMNS_RETRY_MS: Final = 5000
# Frames of a cold segment that are closer than this are read with one request.
COLD_GAP_BYTES_MAX: Final = 256 * KIB
COLD_RANGE_BYTES_MAX: Final = 8 * MIB

# Recent records that are kept in memory although segments hold them, over all topics. Each topic gets a share.
TAIL_CACHE_TOTAL_BYTES: Final = 64 * MIB

# How long a start waits until the worker of a killed server releases the lock.
LOCK_WAIT_MS: Final = 5000
