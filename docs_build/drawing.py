"""A little SVG: boxes, arrows and words on a card that can be read in a light and in a dark theme."""

from typing import Final, Literal
from xml.sax.saxutils import escape

Tone = Literal["plain", "good", "bad", "calm", "gone"]
Anchor = Literal["start", "middle", "end"]

# The picture follows the theme of the system. Its card has a background of its own, so it can be read on any page.
STYLE: Final = """
.card{fill:#fbfcfe;stroke:#d5dbe5}
text{font:14px system-ui,-apple-system,"Segoe UI",Roboto,Ubuntu,sans-serif;fill:#1c2733}
.small{font-size:12px;fill:#51606f}.head{font-weight:600;font-size:15px}.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:13px}
.box{stroke-width:1.5}.plain{fill:#eef2f7;stroke:#9aa8b8}.good{fill:#dcf3e4;stroke:#3f9b64}.bad{fill:#fde3e1;stroke:#c8574e}
.calm{fill:#dfeafc;stroke:#4a7dc9}.gone{fill:none;stroke:#9aa8b8;stroke-dasharray:4 4}
.line{stroke:#51606f;stroke-width:1.6;fill:none}.dash{stroke-dasharray:5 4}.tip{fill:#51606f}
@media (prefers-color-scheme:dark){.card{fill:#1b222b;stroke:#384454}text{fill:#e6ebf1}.small{fill:#a9b6c4}
.plain{fill:#2a3440;stroke:#74859a}.good{fill:#1d3b2a;stroke:#5cbf85}.bad{fill:#46231f;stroke:#e58a80}
.calm{fill:#1f3250;stroke:#7aa7ee}.gone{stroke:#74859a}.line{stroke:#a9b6c4}.tip{fill:#a9b6c4}}
"""


class Drawing:
    """Collects shapes; `svg` gives the whole picture. Places are in pixels from the upper left corner."""

    def __init__(self, width: int, height: int, about: str) -> None:
        self._size = (width, height)
        self._about = about
        self._shapes: list[str] = []

    def box(
        self, x: int, y: int, width: int, height: int, text: str = "", *, tone: Tone = "plain", mono: bool = False
    ) -> None:
        self._shapes.append(f'<rect class="box {tone}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        lines = text.split("\n") if text else []
        top = y + height // 2 + 5 - 9 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width // 2, top + 18 * number, line, anchor="middle", kind="mono" if mono else "")

    def text(self, x: int, y: int, text: str, *, anchor: Anchor = "start", kind: str = "") -> None:
        name = f' class="{kind}"' if kind else ""
        self._shapes.append(f'<text{name} x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>')

    def arrow(self, *points: tuple[int, int], text: str = "", dashed: bool = False) -> None:
        """Through all points. A text is above the middle of the first part."""
        path = " ".join(f"{'M' if number == 0 else 'L'}{x} {y}" for number, (x, y) in enumerate(points))
        self._shapes.append(f'<path class="line{" dash" if dashed else ""}" d="{path}" marker-end="url(#tip)"/>')
        if text:
            (x1, y1), (x2, y2) = points[:2]
            self.text((x1 + x2) // 2, (y1 + y2) // 2 - 7, text, anchor="middle", kind="small")

    def line(self, x1: int, y1: int, x2: int, y2: int, *, dashed: bool = False) -> None:
        self._shapes.append(f'<path class="line{" dash" if dashed else ""}" d="M{x1} {y1} L{x2} {y2}"/>')

    def svg(self) -> str:
        width, height = self._size
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(self._about, {chr(34): "&quot;"})}">\n'
            f"<style>{STYLE}</style>\n"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path class="tip" d="M0 0 L8 4 L0 8 z"/></marker></defs>\n'
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>\n'
            + "\n".join(self._shapes)
            + "\n</svg>\n"
        )
