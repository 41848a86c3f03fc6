"""`docs/llms.txt`: what a language model should read about this project, in the form of llmstxt.org."""

import re
import sys
from typing import Final

from docs_build.site import DOCS, nav

FILE: Final = DOCS / "llms.txt"

ABOUT: Final = """# topics

> A durable, append-only event log: topics of numbered records with queues, routers, groups and live tails, over HTTP
> and JSON, from Python, on Spark, and on the command line. Acknowledged writes survive `kill -9`; with durability
> `fsync` also a power cut. One server is one machine: there is no replication.

- Install: `pip install .` in a clone (no release is on an index yet). The import and the command are `topics`.
  A server: `topics serve` (port 4000).
- Python: `topics.Client(url)`, `topics.AsyncClient(url)`, or `topics.open(path)` for the log inside a process.
- Spark: `spark.read.format("topics")`, `spark.readStream.format("topics")`, `df.write.format("topics")`.
- Seqs count from 1. A cursor is the last seq that a reader has; reads give higher seqs. Lost records are a tombstone.
- Machine-readable descriptions of a running server: `/v0/openapi.json`, `/v0/asyncapi.json`.
"""


def text() -> str:
    lines = [ABOUT]
    section = None
    for part, title, path in nav():
        if path == "changelog.md":
            continue
        if part != section:
            lines.append(f"{'' if section is None else chr(10)}## {part or 'Start here'}\n")
            section = part
        lines.append(f"- [{title}]({path}): {first_sentence(DOCS.joinpath(path).read_text('utf-8'))}")
    return "\n".join(lines) + "\n"


def first_sentence(page: str) -> str:
    """Of the first paragraph, without links."""
    paragraph = next(part for part in page.split("\n\n") if not part.lstrip().startswith(("#", "<!--", "!", "```")))
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    return re.split(r"(?<=[.?])\s", plain, maxsplit=1)[0]


def main() -> None:
    FILE.write_text(text(), "utf-8")
    sys.stdout.write("docs/llms.txt\n")


if __name__ == "__main__":
    main()
