"""The pictures of the concept pages. `python -m docs_build.pictures` (or `make pictures`) writes `docs/pictures`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from docs_build.drawing import Drawing, Tone

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"


def row_of_records(
    drawing: Drawing, y: int, tones: dict[int, Tone], *, first: int = 1, last: int = 9, x: int = 60
) -> None:
    """Records as boxes with their seqs. Each is 66 pixels from the next."""
    for seq in range(first, last + 1):
        drawing.box(x + 66 * (seq - first), y, 56, 44, str(seq), tone=tones.get(seq, "plain"), mono=True)


def log() -> Drawing:
    drawing = Drawing(760, 230, "A topic with nine records, the cursor of a reader at seq 4, and the head at seq 9")
    drawing.text(30, 34, "topic orders", kind="head")
    row_of_records(drawing, 90, dict.fromkeys(range(5, 10), "calm"))
    drawing.box(654, 90, 56, 44, "10", tone="gone", mono=True)
    drawing.arrow((286, 66), (286, 86))
    drawing.text(286, 58, "cursor of a reader: 4", anchor="middle")
    drawing.arrow((616, 66), (616, 86))
    drawing.text(616, 58, "head_seq: 9", anchor="middle")
    drawing.arrow((88, 158), (88, 138))
    drawing.text(60, 176, "earliest_seq: 1")
    drawing.arrow((682, 158), (682, 138))
    drawing.text(710, 176, "next write: seq 10", anchor="end")
    drawing.text(451, 158, "the next page of this reader", anchor="middle", kind="small")
    drawing.text(
        380, 212, "Records never change. Seqs count from 1, in the order of the writes.", anchor="middle", kind="small"
    )
    return drawing


def tombstone() -> Drawing:
    drawing = Drawing(760, 262, "A cap removed the records 1 to 5, a reader at cursor 2 gets a tombstone for 3 to 5")
    drawing.text(30, 34, "topic orders, cap_records = 4", kind="head")
    tones: dict[int, Tone] = dict.fromkeys(range(1, 6), "gone")
    row_of_records(drawing, 96, {**tones, **dict.fromkeys(range(6, 10), "calm")})
    drawing.arrow((154, 72), (154, 92))
    drawing.text(154, 64, "cursor: 2", anchor="middle")
    drawing.arrow((418, 72), (418, 92))
    drawing.text(418, 64, "evict_floor = earliest_seq: 6", anchor="middle")
    drawing.box(186, 164, 198, 48, "tombstone\ngap_from 3, gap_to 5, cap", tone="bad")
    drawing.line(192, 146, 380, 146)
    drawing.line(286, 146, 286, 164)
    drawing.box(390, 164, 254, 48, "then the records 6 to 9", tone="calm")
    drawing.text(
        380, 244, "The reader is told which records it missed, and why. Then it goes on.", anchor="middle", kind="small"
    )
    return drawing


def durability() -> Drawing:
    drawing = Drawing(
        760, 318, "The way of a write from the client to the disk, and where each durability class answers"
    )
    drawing.text(30, 34, "The way of a write", kind="head")
    for x, text in (
        (30, "client"),
        (196, "memory of\nthe server"),
        (382, "write-ahead log,\nin the memory\nof the OS"),
        (588, "write-ahead log,\non the disk"),
    ):
        drawing.box(x, 62, 142, 72, text, tone="plain")
    for x1, x2, text in ((172, 192, ""), (338, 378, "write"), (524, 584, "sync")):
        drawing.arrow((x1, 98), (x2, 98), text=text)
    for x, text, tone in ((267, "ephemeral", "bad"), (453, "memory, disk", "calm"), (659, "fsync", "good")):
        drawing.arrow((x, 134), (x, 164))
        drawing.box(x - 66, 166, 132, 34, text, tone=tone)  # type: ignore[arg-type]
    drawing.text(101, 188, "answered here:", anchor="middle", kind="small")
    drawing.line(360, 212, 360, 292, dashed=True)
    drawing.text(267, 228, "kill -9 takes it", anchor="middle", kind="small")
    drawing.line(562, 212, 562, 292, dashed=True)
    drawing.text(453, 228, "kill -9 takes nothing", anchor="middle", kind="small")
    drawing.text(453, 250, "a power cut takes", anchor="middle", kind="small")
    drawing.text(453, 266, "the last 100 ms", anchor="middle", kind="small")
    drawing.text(659, 228, "kill -9 takes nothing", anchor="middle", kind="small")
    drawing.text(659, 250, "a power cut", anchor="middle", kind="small")
    drawing.text(659, 266, "takes nothing", anchor="middle", kind="small")
    drawing.text(101, 228, "what is lost", anchor="middle", kind="small")
    drawing.text(101, 244, "after the answer:", anchor="middle", kind="small")
    return drawing


def loss_window() -> Drawing:
    drawing = Drawing(760, 236, "Writes of class disk, the syncs in the background every 50 ms, and a power cut")
    drawing.text(30, 34, "Class disk: what a power cut can take", kind="head")
    drawing.arrow((40, 150), (728, 150))
    drawing.text(728, 176, "time", anchor="end", kind="small")
    for number in range(6):
        x = 70 + 110 * number
        drawing.line(x, 142, x, 158)
        drawing.text(x, 176, f"{50 * number} ms", anchor="middle", kind="small")
    for x in (84, 120, 150, 206, 240, 296, 330, 390, 420):
        drawing.box(x, 96, 16, 34, tone="good")
    for x in (456, 500, 548):
        drawing.box(x, 96, 16, 34, tone="bad")
    drawing.line(588, 62, 588, 160, dashed=True)
    drawing.text(588, 54, "power cut", anchor="middle")
    drawing.text(250, 82, "answered and synced: kept", anchor="middle", kind="small")
    drawing.text(512, 82, "answered, not synced", anchor="middle", kind="small")
    drawing.text(
        380,
        212,
        "A tick every 50 ms syncs bytes that are older than 50 ms: at most the last 100 ms are open.",
        anchor="middle",
        kind="small",
    )
    return drawing


def lease() -> Drawing:
    drawing = Drawing(760, 300, "The states of a job: ready, leased, done, delayed, dead letter")
    drawing.text(30, 34, "The life of a job", kind="head")
    drawing.box(60, 110, 120, 52, "ready", tone="calm")
    drawing.box(320, 110, 120, 52, "leased\nto one worker", tone="plain")
    drawing.box(590, 110, 120, 52, "done: deleted", tone="good")
    drawing.box(190, 214, 120, 52, "delayed", tone="plain")
    drawing.box(590, 214, 120, 52, "dead letter", tone="bad")
    drawing.arrow((22, 136), (56, 136))
    drawing.text(22, 126, "write", kind="small")
    drawing.arrow((180, 128), (316, 128), text="claim")
    drawing.arrow((440, 136), (586, 136), text="ack")
    drawing.arrow((345, 110), (345, 74), (120, 74), (120, 106))
    drawing.text(232, 66, "the lease ends, or nack: ready again", anchor="middle", kind="small")
    drawing.arrow((350, 162), (350, 240), (314, 240))
    drawing.text(342, 206, "nack with a delay", anchor="end", kind="small")
    drawing.arrow((190, 240), (120, 240), (120, 166))
    drawing.arrow((430, 162), (430, 240), (586, 240))
    drawing.text(512, 232, "after max_deliveries", anchor="middle", kind="small")
    drawing.arrow((650, 266), (650, 284), (84, 284), (84, 166), dashed=True)
    drawing.text(452, 279, "redrive", anchor="middle", kind="small")
    return drawing


def router() -> Drawing:
    drawing = Drawing(760, 240, "Routers copy records of the topic orders to two topics by their tags")
    drawing.box(40, 92, 150, 56, "orders\n(source)", tone="calm")
    drawing.box(300, 44, 170, 48, "router\nfilter acme:*", tone="plain")
    drawing.box(300, 148, 170, 48, "router\nno filter", tone="plain")
    drawing.box(570, 44, 150, 48, "orders.acme\n(dest)", tone="calm")
    drawing.box(570, 148, 150, 48, "orders.audit\n(dest)", tone="calm")
    drawing.arrow((190, 110), (296, 70))
    drawing.arrow((190, 130), (296, 170))
    drawing.arrow((470, 68), (566, 68), text="copies")
    drawing.arrow((470, 172), (566, 172), text="copies")
    drawing.text(30, 30, "One write, several topics", kind="head")
    drawing.text(
        380,
        226,
        "The write is answered before the copies are made. A read of a dest waits for them.",
        anchor="middle",
        kind="small",
    )
    return drawing


def groups() -> Drawing:
    drawing = Drawing(760, 244, "Two consumer groups with cursors of their own in one topic")
    drawing.text(30, 34, "Two groups read one topic", kind="head")
    row_of_records(drawing, 100, {})
    drawing.arrow((220, 76), (220, 96))
    drawing.text(220, 68, "billing: cursor 3, lag 6", anchor="middle")
    drawing.arrow((550, 76), (550, 96))
    drawing.text(550, 68, "search: cursor 8, lag 1", anchor="middle")
    drawing.arrow((616, 168), (616, 148))
    drawing.text(616, 186, "head_seq: 9", anchor="middle")
    drawing.text(
        380,
        224,
        "The server keeps the cursors. A group that stops for a day continues where it was.",
        anchor="middle",
        kind="small",
    )
    return drawing


def node() -> Drawing:
    drawing = Drawing(760, 236, "Two programs write to one topic, and each reads only the records of the other")
    drawing.text(30, 34, "A node name keeps echoes away", kind="head")
    drawing.box(40, 96, 150, 60, "program\nnode edge-1", tone="plain")
    drawing.box(570, 96, 150, 60, "program\nnode edge-2", tone="plain")
    drawing.box(280, 74, 200, 104, "topic room\n1 from edge-1\n2 from edge-2\n3 from edge-1", tone="calm")
    drawing.arrow((190, 112), (276, 112), text="writes 1, 3")
    drawing.arrow((276, 142), (194, 142))
    drawing.text(234, 160, "gets 2", anchor="middle", kind="small")
    drawing.arrow((570, 112), (484, 112), text="writes 2")
    drawing.arrow((484, 142), (566, 142))
    drawing.text(526, 160, "gets 1, 3", anchor="middle", kind="small")
    drawing.text(
        380,
        216,
        "Each reads with its own node name, and the server leaves out what that node wrote.",
        anchor="middle",
        kind="small",
    )
    return drawing


def segments() -> Drawing:
    drawing = Drawing(
        760, 264, "Records go from the write-ahead log into segments, and old segments into the cold tier"
    )
    drawing.text(30, 34, "Where records are on disk", kind="head")
    drawing.box(40, 76, 160, 110, tone="plain")
    drawing.text(120, 66, "write-ahead log", anchor="middle")
    drawing.text(120, 118, "the newest records", anchor="middle", kind="small")
    drawing.text(120, 136, "of all topics,", anchor="middle", kind="small")
    drawing.text(120, 154, "in order of writing", anchor="middle", kind="small")
    drawing.arrow((200, 131), (276, 131), text="checkpoint")
    drawing.text(390, 66, "segments of each topic", anchor="middle")
    for number, (text, tone) in enumerate(
        (("1 – 10000", "good"), ("10001 – 20000", "good"), ("20001 – (active)", "plain"))
    ):
        drawing.box(280, 78 + 37 * number, 220, 30, text, tone=tone, mono=True)  # type: ignore[arg-type]
    drawing.arrow((500, 93), (566, 93))
    drawing.text(640, 66, "cold tier (if you want)", anchor="middle")
    drawing.box(570, 78, 140, 30, "1 – 10000", tone="calm", mono=True)
    drawing.text(640, 130, "a folder", anchor="middle", kind="small")
    drawing.text(640, 148, "or an S3 bucket", anchor="middle", kind="small")
    drawing.text(
        380,
        226,
        "A sealed segment never changes, except for its delete marks: it can be copied, moved and read at any time.",
        anchor="middle",
        kind="small",
    )
    drawing.text(380, 246, "Readers notice none of this.", anchor="middle", kind="small")
    return drawing


PICTURES: Final[dict[str, Callable[[], Drawing]]] = {
    "log": log,
    "tombstone": tombstone,
    "durability": durability,
    "loss-window": loss_window,
    "lease": lease,
    "router": router,
    "groups": groups,
    "node": node,
    "segments": segments,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        FOLDER.joinpath(f"{name}.svg").write_text(draw().svg(), "utf-8")
    sys.stdout.write(f"{len(PICTURES)} pictures in docs/pictures\n")


if __name__ == "__main__":
    main()
