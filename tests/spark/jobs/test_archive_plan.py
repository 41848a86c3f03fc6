"""What an archive run has to do, from a manifest and a lake that are made up."""

import msgspec
import pytest

from tests.spark.lakes import done, lake_file
from tests.spark.lakes import state_of as lake
from tests.spark.manifests import make_manifest, make_segment
from topics.spark.errors import Conflict
from topics.spark.jobs.archive_plan import ArchiveItem, Bounds, by_topic, plan_topic
from topics.spark.lake.state import LakeGap, LakeState
from topics.spark.manifest import Manifest, Segment

BOUNDS = Bounds(file_records=30)


def sealed(first_seq: int, last_seq: int, digest: str | None = None) -> Segment:
    return msgspec.structs.replace(make_segment(first_seq, last_seq), digest=digest or f"{first_seq}-{last_seq}")


def topic(*segments: Segment, **changes: object) -> Manifest:
    last_seq = segments[-1].last_seq
    members = {"segments": segments, "head_seq": last_seq + 5, "checkpointed_seq": last_seq, "store_id": "s"}
    return make_manifest("a", **(members | changes))  # type: ignore[arg-type]


def ranges(items: list[ArchiveItem]) -> list[tuple[int, int]]:
    return [(part.first_seq, part.last_seq) for item in items for part in item.partitions]


def test_neighbours_share_a_file_up_to_its_bounds() -> None:
    segments = [sealed(first, first + 9) for first in range(1, 71, 10)]
    plan = plan_topic(topic(*segments), LakeState(), BOUNDS, apply_deletes=False)
    assert ranges(plan.items) == [(1, 30), (31, 60), (61, 70)]
    assert [segment.digest for segment in plan.items[2].segments] == ["61-70"]
    by_bytes = plan_topic(topic(*segments), LakeState(), Bounds(file_bytes=2000), apply_deletes=False)
    assert ranges(by_bytes.items) == [(1, 20), (21, 40), (41, 60), (61, 70)]


def test_a_segment_is_done_when_the_lake_has_its_digest() -> None:
    segments = [sealed(first, first + 9) for first in range(1, 61, 10)]
    state = lake(lake_file(11, 20), segments=(done(11, 20),))
    plan = plan_topic(topic(*segments), state, BOUNDS, apply_deletes=False)
    assert ranges(plan.items) == [(1, 10), (21, 50), (51, 60)], "what is done between two is not read again"
    state = lake(lake_file(1, 60), segments=tuple(done(first, first + 9) for first in range(1, 61, 10)))
    assert plan_topic(topic(*segments), state, BOUNDS, apply_deletes=False) == ([], [])


def test_the_active_segment_and_what_is_below_the_floors_are_left_alone() -> None:
    active = msgspec.structs.replace(sealed(31, 40), sealed=False, digest="")
    picture = topic(sealed(1, 10), sealed(11, 20), sealed(21, 30), active, evict_floor=15, earliest_seq=15)
    plan = plan_topic(picture, LakeState(), BOUNDS, apply_deletes=False)
    assert ranges(plan.items) == [(15, 30)]
    assert plan.gaps == [LakeGap("a", 1, 1, 14, "mixed")], "what was evicted before the first run is missing, too"


def test_a_segment_that_was_written_again_replaces_the_files_with_its_seqs() -> None:
    state = lake(lake_file(1, 20), lake_file(21, 30), segments=(done(1, 10), done(11, 20), done(21, 30)))
    picture = topic(sealed(1, 10), sealed(11, 20, "purged"), sealed(21, 30))
    (item,) = plan_topic(picture, state, BOUNDS, apply_deletes=False).items
    assert ranges([item]) == [(11, 20)]
    assert item.dropped == ((11, 20),)
    assert [file.first_seq for file in item.replaces] == [1]
    assert item.expects == {"11-20"}
    assert [segment.digest for segment in item.segments] == ["purged"]


def test_two_segments_of_one_file_are_replaced_together() -> None:
    state = lake(lake_file(1, 20), lake_file(21, 30), segments=(done(1, 10), done(11, 20), done(21, 30)))
    picture = topic(sealed(1, 10, "p1"), sealed(11, 20, "p2"), sealed(21, 30, "p3"))
    first, second = plan_topic(picture, state, BOUNDS, apply_deletes=False).items
    assert ranges([first]) == [(1, 10), (11, 20)]
    assert first.expects == {"1-10", "11-20"}
    assert ranges([second]) == [(21, 30)]


def test_evicted_rows_of_a_segment_that_was_written_again_stay() -> None:
    state = lake(lake_file(1, 10), segments=(done(1, 10),))
    (item,) = plan_topic(topic(sealed(1, 10, "p"), evict_floor=6), state, BOUNDS, apply_deletes=False).items
    assert item.dropped == ((6, 10),)


def test_deletes_are_applied_only_when_asked_for_and_only_where_there_are_any() -> None:
    state = lake(
        lake_file(1, 10), lake_file(11, 20), lake_file(21, 30), segments=(done(1, 10), done(11, 20), done(21, 30))
    )
    fewer = msgspec.structs.replace(sealed(11, 20), live=7)
    picture = topic(sealed(1, 10), fewer, sealed(21, 30), pending_deletes=((25, 26),))
    assert plan_topic(picture, state, BOUNDS, apply_deletes=False).items == []
    items = plan_topic(picture, state, BOUNDS, apply_deletes=True).items
    assert ranges(items) == [(11, 20), (21, 30)]


def test_what_was_deleted_below_a_seq_leaves_the_lake_also_when_no_segment_has_it_any_more() -> None:
    state = lake(lake_file(1, 10), lake_file(11, 20), segments=(done(1, 10), done(11, 20)))
    picture = topic(sealed(21, 30), delete_below=6, earliest_seq=21, evict_floor=21)
    items = plan_topic(picture, state, BOUNDS, apply_deletes=True).items
    assert [item.dropped for item in items] == [(), ((0, 5),)]
    assert [file.first_seq for file in items[1].replaces] == [1]


def test_a_segment_with_records_that_could_not_be_read_is_looked_at_again() -> None:
    damaged = msgspec.structs.replace(done(1, 10), rows=9, bad=1)
    state = lake(lake_file(1, 10), segments=(damaged,))
    (item,) = plan_topic(topic(sealed(1, 10)), state, BOUNDS, apply_deletes=False).items
    assert item.expects == {"1-10"}


def test_what_was_evicted_before_it_was_archived_is_a_gap_once() -> None:
    state = lake(lake_file(1, 10), segments=(done(1, 10),))
    picture = topic(sealed(41, 50), evict_floor=41, earliest_seq=41, cap_floor=40, ttl_floor=0)
    plan = plan_topic(picture, state, BOUNDS, apply_deletes=False)
    assert plan.gaps == [LakeGap("a", 1, 11, 40, "cap")]
    known = lake(lake_file(1, 10), segments=(done(1, 10),), gaps=(LakeGap("a", 1, 11, 40, "cap"),))
    assert plan_topic(picture, known, BOUNDS, apply_deletes=False).gaps == []
    wider = topic(sealed(61, 70), evict_floor=61, earliest_seq=61)
    assert plan_topic(wider, known, BOUNDS, apply_deletes=False).gaps == [LakeGap("a", 1, 41, 60, "mixed")]


def test_seqs_that_never_had_a_record_are_no_gap() -> None:
    """Between segments 1-10 and 16-20 there was nothing. The lake knows, though both are evicted by now."""
    after = msgspec.structs.replace(done(16, 20), follows=10)
    state = lake(lake_file(1, 10), lake_file(16, 20), segments=(done(1, 10), after))
    picture = topic(sealed(21, 30), evict_floor=21, earliest_seq=21)
    assert plan_topic(picture, state, BOUNDS, apply_deletes=False).gaps == []
    first = plan_topic(topic(sealed(1, 10), sealed(16, 20)), LakeState(), BOUNDS, apply_deletes=False)
    assert [segment.follows for segment in first.items[0].segments] == [None, 10]


def test_a_power_loss_is_a_gap_once() -> None:
    picture = topic(sealed(1, 10), lost_ranges=((4, 6),))
    assert plan_topic(picture, LakeState(), BOUNDS, apply_deletes=False).gaps == [LakeGap("a", 1, 4, 6, "power_loss")]
    known = lake(gaps=(LakeGap("a", 1, 4, 6, "power_loss"),))
    assert plan_topic(picture, known, BOUNDS, apply_deletes=False).gaps == []


@pytest.mark.parametrize("epoch", [1, 2])
def test_a_topic_that_was_created_again_is_archived_as_another_instance(epoch: int) -> None:
    """Whether the server gives it another epoch, or only another id."""
    state = lake(lake_file(1, 10), segments=(done(1, 10),))
    picture = topic(sealed(1, 10, "other"), epoch=epoch, topic_id=8)
    plan = plan_topic(picture, state, BOUNDS, apply_deletes=False)
    assert plan.gaps == [LakeGap("a", 1, 11, None, "recreated")]
    (item,) = plan.items
    assert (item.epoch, item.replaces, item.expects) == (2, (), frozenset())
    # Of one that the lake knows, the beginning counts, too.
    later = topic(sealed(11, 20, "other"), epoch=epoch, topic_id=8, evict_floor=11, earliest_seq=11)
    gaps = plan_topic(later, state, BOUNDS, apply_deletes=False).gaps
    assert gaps == [LakeGap("a", 1, 11, None, "recreated"), LakeGap("a", 2, 1, 10, "mixed")]


def test_a_topic_of_another_store_is_refused() -> None:
    state = lake(lake_file(1, 10), segments=(done(1, 10),))
    with pytest.raises(Conflict, match='the lake has topic "a" from store s, this one is x; give each server a lake'):
        plan_topic(topic(sealed(1, 10), store_id="x"), state, BOUNDS, apply_deletes=False)


def test_the_seqs_of_a_wave_are_known_by_topic() -> None:
    items = plan_topic(topic(sealed(1, 10), sealed(11, 40)), LakeState(), BOUNDS, apply_deletes=False).items
    assert list(by_topic(items)) == [("a", (1, 40))]
    assert list(by_topic([])) == []
