"""Waves, progress, Ctrl-C and exit codes. No Spark here."""

import signal
import threading
from collections.abc import Sequence

import pytest

from topics.errors import TopicNotFound
from topics.spark.errors import Conflict
from topics.spark.jobs.job import Interrupted, Progress, Report, WaveDone, exit_code_of, run_waves
from topics.spark.jobs.spread import TaskFailed, task_failure
from topics.spark.loss import Gap, TopicsDataLoss


def test_a_wave_has_four_items_a_core_and_every_item_is_in_one() -> None:
    waves: list[Sequence[int]] = []

    def work(wave: Sequence[int]) -> WaveDone:
        waves.append(wave)
        return WaveDone(records=len(wave), bytes=10 * len(wave))

    done = run_waves("copy", list(range(19)), work, cores=2)
    assert [len(wave) for wave in waves] == [8, 8, 3]
    assert [item for wave in waves for item in wave] == list(range(19))
    assert (done.items, done.records, done.bytes) == (19, 19, 190)


def test_an_item_that_is_more_than_a_task_can_be_a_wave_of_its_own() -> None:
    waves: list[Sequence[int]] = []
    run_waves("copy", [1, 2, 3], lambda wave: waves.append(wave) or WaveDone(), cores=8, wave_items=1)
    assert waves == [[1], [2], [3]]


def test_progress_after_each_wave_counts_items_and_forecasts_by_their_weights() -> None:
    told: list[Progress] = []
    run_waves("copy", [1, 1, 8], lambda wave: WaveDone(5, 50), cores=1, wave_items=1, weigh=int, report=told.append)
    assert [(step.wave, step.waves, step.done, step.total, step.records, step.bytes) for step in told] == [
        (1, 3, 1, 3, 5, 50),
        (2, 3, 2, 3, 10, 100),
        (3, 3, 3, 3, 15, 150),
    ]
    assert told[-1].eta_s == 0
    assert list(told[0].members()) == ["job", "wave", "waves", "done", "total", "records", "bytes", "per_s", "eta_s"]


def test_no_items_are_no_waves() -> None:
    told: list[Progress] = []
    done = run_waves("copy", [], lambda wave: pytest.fail("nothing to do"), cores=2, report=told.append)
    assert (done.items, told) == (0, [])


def test_ctrl_c_lets_the_running_wave_end_and_then_stops() -> None:
    ended: list[int] = []

    def work(wave: Sequence[int]) -> WaveDone:
        if wave[0] == 2:
            signal.raise_signal(signal.SIGINT)
        ended.append(wave[0])
        return WaveDone()

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match=r"stopped after wave 2 of 4 \(2 of 4 done\); run the same command again"):
        run_waves("copy", [1, 2, 3, 4], work, cores=1, wave_items=1)
    assert ended == [1, 2]
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_the_last_wave_changes_nothing() -> None:
    def work(wave: Sequence[int]) -> WaveDone:
        signal.raise_signal(signal.SIGINT)
        return WaveDone(records=1)

    assert run_waves("copy", [1], work, cores=1).records == 1


def test_a_second_ctrl_c_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)

    def work(wave: Sequence[int]) -> WaveDone:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it went on")

    with pytest.raises(KeyboardInterrupt):
        run_waves("copy", [1, 2], work, cores=1, wave_items=1)
    assert signal.getsignal(signal.SIGINT) is before


def test_waves_run_in_any_thread() -> None:
    done: list[int] = []
    thread = threading.Thread(
        target=lambda: done.append(run_waves("copy", [1, 2], lambda wave: WaveDone(1), cores=1).records)
    )
    thread.start()
    thread.join(30)
    assert done == [1]


def test_errors_have_the_exit_codes_of_the_contract() -> None:
    loss = TopicsDataLoss(Gap("orders", 1, 5, "cap"))
    assert exit_code_of(loss) == 3
    assert exit_code_of(Conflict("another job was faster")) == 4
    assert exit_code_of(TopicNotFound("orders")) == 1
    assert exit_code_of(Interrupted("stopped")) == 1


def test_an_error_of_ours_inside_one_of_spark_keeps_its_exit_code_and_its_message() -> None:
    class FromSpark(Exception):
        pass

    text = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan: Traceback (most recent call last):
  File "worker.py", line 3, in main
topics.spark.loss.TopicsDataLoss: data loss: seqs 1-5 are expired. Ways out: none
\tat org.apache.spark.executor.Executor.run(Executor.scala:906)
"""
    failure = task_failure(FromSpark(text))
    assert failure.message == "data loss: seqs 1-5 are expired. Ways out: none"
    assert exit_code_of(failure) == 3


def test_an_error_that_is_not_ours_is_told_in_one_line() -> None:
    python = "Traceback (most recent call last):\n  File x\nOSError: [Errno 28] no room\n\tat java.lang.Thread.run"
    assert task_failure(ValueError(python)).message == "OSError: [Errno 28] no room"
    assert task_failure(ValueError("[UNRESOLVED_COLUMN] no column `a`.\n'Project ['a]")).message == (
        "[UNRESOLVED_COLUMN] no column `a`."
    )
    assert isinstance(task_failure(ValueError("")), TaskFailed)


def test_a_report_can_be_json() -> None:
    import msgspec

    report = Report(job="verify", findings=({"problem": "gap"},), exit_code=2, detail={"seqs": [1, 5]})
    members = msgspec.json.decode(msgspec.json.encode(report.members()))
    assert members["findings"] == [{"problem": "gap"}]
    assert members["detail"] == {"seqs": [1, 5]}
