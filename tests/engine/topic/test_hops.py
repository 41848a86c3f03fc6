"""How often records were copied, by runs of seqs."""

from topics.engine.topic.hops import HopRuns


def test_neighbours_with_the_same_hops_are_one_run() -> None:
    hops = HopRuns()
    for seq, count in ((3, 1), (4, 1), (5, 3), (9, 3)):
        hops.note(seq, count)
    assert hops.within(0, 99) == [(3, 4, 1), (5, 5, 3), (9, 9, 3)]
    assert [hops.of(seq) for seq in (2, 3, 4, 5, 6, 9, 10)] == [0, 1, 1, 3, 0, 3, 0]
    assert hops.within(4, 5) == [(4, 4, 1), (5, 5, 3)]


def test_what_was_never_committed_is_forgotten() -> None:
    hops = HopRuns([(1, 5, 2), (6, 8, 4)])
    hops.forget_from(4)
    assert hops.within(0, 99) == [(1, 3, 2)]


def test_runs_stay_until_the_checkpoint_behind_the_one_that_settled_them() -> None:
    hops = HopRuns([(1, 5, 2), (6, 8, 4)])
    hops.checkpoint(5)
    assert len(hops) == 2
    hops.checkpoint(8)
    assert hops.within(0, 99) == [(6, 8, 4)]
    hops.checkpoint(8)
    assert len(hops) == 0


def test_a_range_is_one_run_and_its_end_is_found() -> None:
    hops = HopRuns([(3, 4, 1)])
    hops.note_range(5, 1000, 1)
    hops.note_range(1003, 1010, 2)
    assert hops.within(0, 9999) == [(3, 1000, 1), (1003, 1010, 2)]
    ends = [(1, 2), (3, 1000), (999, 1000), (1001, 1002), (1003, 1008), (1011, 1008)]
    assert [(seq, hops.same_to(seq, 1008)) for seq, _ in ends] == ends
