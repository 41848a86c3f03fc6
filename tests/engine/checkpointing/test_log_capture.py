"""The capture of the whole log: what a checkpoint would write down, at one moment, with the files pinned."""

from tests.engine.router_driver import RouterDriver
from tests.engine.small_log import SEGMENT_EVENTS, SmallLog
from topics.engine.checkpointing.log_capture import CapturedLog, capture_log
from topics.formats import snapshot as codec
from topics.formats.snapshot import TopicState
from topics.testing.fake_disk import FakeDisk


def states(captured: CapturedLog) -> dict[str, TopicState]:
    entries = [codec.decode_topic(entry) for entry in codec.decode(captured.snapshot).topics]
    return {state.name: state for state in entries}


def test_a_capture_has_what_a_later_checkpoint_would_write_down() -> None:
    log = SmallLog(FakeDisk())
    log.append(count=SEGMENT_EVENTS + 1, tag="x")
    log.checkpoint()
    log.append(count=2, tag="y")
    log.delete(tag="x")
    captured = states(capture_log(log.engine, 0))["a"]
    assert (captured.head_seq, captured.checkpointed_seq, captured.first_live) == (8, 8, 7)
    log.checkpoint()
    again = states(capture_log(log.engine, 0))["a"]
    assert (again.head_seq, again.checkpointed_seq, again.first_live) == (8, 8, 7)


def test_the_files_of_all_topics_have_one_pin() -> None:
    log = SmallLog(FakeDisk())
    for name in ("a", "b"):
        log.append(name, count=SEGMENT_EVENTS)
    log.checkpoint()
    captured = capture_log(log.engine, 1000)
    assert captured.pin is not None
    assert [log.engine.pins.holds(log.topic(name).id, 1) for name in ("a", "b")] == [True, True]
    assert len(log.engine.pins) == 1
    assert (captured.store_id, captured.data_uri) == (log.engine.directory.store_id, "file:///data")


def test_an_empty_log_is_captured_without_a_pin() -> None:
    captured = capture_log(SmallLog(FakeDisk()).engine, 1000)
    assert captured.pin is None
    assert states(captured) == {}


def test_cursors_of_routers_belong_to_the_copies_in_their_dests() -> None:
    driver = RouterDriver()
    driver.append(0, topic="a")
    driver.route("a", "b")
    driver.append(1, 2, 3, topic="a")
    before = capture_log(driver.opened.engine, 0)
    assert driver.seqs(topic="b") == [1, 2, 3]
    after = capture_log(driver.opened.engine, 0)
    for captured, copies in ((before, 0), (after, 3)):
        (router,) = codec.decode(captured.snapshot).routers
        assert (router.cursor, router.dest_seq) == (1 + copies, copies)
        assert states(captured)["b"].head_seq == copies
