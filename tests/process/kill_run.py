"""Kills a writing process many times, and compares the acks that it got with the records that are there.

By hand: `python -m tests.process.kill_run --kills 50`.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.process.writer import CLASSES

REPOSITORY = Path(__file__).resolve().parents[2]


def start_writer(directory: Path, run: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.process.writer", str(directory), str(run)],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    )


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[list[str]]:
    """The complete lines, split into words. A line that the kill cut off is left out."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.endswith(b"\n"):
            yield line.decode().split()


@dataclass
class Findings:
    """All acks so far, and the faults that were found."""

    acked: dict[str, dict[int, str]] = field(default_factory=lambda: {topic: {} for topic in CLASSES})
    found: dict[str, dict[int, str]] = field(default_factory=dict)
    kills: int = 0
    kills_while_opening: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    holes: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        return [*self.lost, *self.wrong, *self.reused, *self.holes]

    def note_ack(self, topic: str, seq: int, payload: str) -> None:
        before = self.acked[topic].get(seq)
        if before is not None:
            self.reused.append(f"{topic} {seq}: acked for {before}, then for {payload}")
        self.acked[topic][seq] = payload

    def check(self, heads: list[int]) -> None:
        """Compares all records with the acks."""
        for topic, head in zip(CLASSES, heads, strict=True):
            found = self.found.get(topic, {})
            for seq, payload in self.acked[topic].items():
                if seq not in found:
                    self.lost.append(f"{topic} {seq}: {payload} was acked and is gone")
                elif found[seq] != payload:
                    self.wrong.append(f"{topic} {seq}: {payload} was acked, {found[seq]} is there")
            if sorted(found) != list(range(1, head + 1)):
                missing = sorted(set(range(1, head + 1)) - set(found))
                self.holes.append(f"{topic}: head {head}, missing {missing[:10]}")
            payloads = list(found.values())
            if len(set(payloads)) != len(payloads):
                self.wrong.append(f"{topic}: a record is there twice")
            self.wrong += [f"{topic}: {payload}" for payload in payloads if payload.startswith("?")]
            self._check_order(topic, found)

    def _check_order(self, topic: str, found: dict[int, str]) -> None:
        """The records of each thread are in the order of its writes, and none is missing."""
        newest: dict[tuple[str, str], int] = {}
        for seq in sorted(found):
            run, thread, number = found[seq].split(maxsplit=2)
            if not number.isdigit() or int(number) != newest.get((run, thread), -1) + 1:
                self.wrong.append(f"{topic} {seq}: {found[seq]} is out of order")
                return
            newest[run, thread] = int(number)

    def summary(self) -> str:
        rows = [f"kills              {self.kills} ({self.kills_while_opening} of them while opening)"]
        for topic, durability in CLASSES.items():
            rows.append(f"acked to {durability:<10}{len(self.acked[topic])}")
        rows += [f"{name:<19}{len(getattr(self, name))}" for name in ("lost", "wrong", "reused", "holes")]
        return "\n".join(rows + self.faults[:20])


def newest_snapshot(directory: Path) -> int:
    return max((int(path.name.split(".")[1]) for path in directory.glob("meta/snapshot.*.bin")), default=0)


def run_once(directory: Path, run: int, findings: Findings, *, acks: int, snapshots: int = 0) -> None:
    """Runs one child. The records that it finds are checked, its acks are noted, and after `acks` acks it is killed.

    With `snapshots` the acks are counted only after that many checkpoints. `acks` below 0: the child is killed while it
    opens the directory (-1), or while it lists the records that it found (-2).
    """
    wanted = newest_snapshot(directory) + snapshots
    process = start_writer(directory, run)
    findings.found = {topic: {} for topic in CLASSES}
    seen = told = 0
    is_killed = False
    try:
        for kind, *words in lines_of(process):
            if kind == "record":
                topic, seq, *payload = words
                findings.found[topic][int(seq)] = " ".join(payload)
            elif kind == "lost":
                findings.holes.append(" ".join(words))
            elif kind == "ready":
                if not is_killed:
                    findings.check([int(word) for word in words])
            elif kind == "ack":
                topic, seq, *payload = words
                findings.note_ack(topic, int(seq), " ".join(payload))
                told += 1
                if snapshots and told % 20 == 0 and newest_snapshot(directory) >= wanted:
                    snapshots = 0
                seen += not snapshots
            elif kind == "refused":
                findings.wrong.append(f"a writer was refused: {words}")
            is_due = kind == "opening" if acks == -1 else kind == "record" if acks == -2 else seen >= acks
            if is_due and not is_killed and (acks < 0 or kind == "ack"):
                process.send_signal(signal.SIGKILL)
                is_killed = True
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    if run >= 0:
        findings.kills += 1
        findings.kills_while_opening += acks < 0


def run_kills(directory: Path, kills: int, seed: int) -> Findings:
    """Runs `kills` children on the same directory, one after the other, and checks the records at the end."""
    dice = random.Random(seed)
    findings = Findings()
    for run in range(kills):
        if run and dice.random() < 0.2:
            run_once(directory, run, findings, acks=dice.choice((-1, -2)))
        else:
            # The worker of the first checkpoint needs time to start, so every second child waits for a checkpoint.
            run_once(directory, run, findings, acks=dice.randrange(1, 500), snapshots=run % 2 * dice.randrange(1, 4))
        if findings.faults:
            return findings
    run_once(directory, -1, findings, acks=10**9)
    return findings


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a writer with SIGKILL, reopen, compare.")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--directory", type=Path, help="kept afterwards; default: a temporary one")
    arguments = parser.parse_args()
    print(f"seed               {arguments.seed}")
    if arguments.directory is not None:
        findings = run_kills(arguments.directory, arguments.kills, arguments.seed)
    else:
        with tempfile.TemporaryDirectory() as folder:
            findings = run_kills(Path(folder) / "data", arguments.kills, arguments.seed)
    print(findings.summary())
    sys.exit(1 if findings.faults else 0)


if __name__ == "__main__":
    main()
