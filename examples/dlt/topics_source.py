"""Topics as a dlt source: every run loads the records since the last one, each once.

    pip install topics-log 'dlt[duckdb]'
    python topics_source.py http://localhost:4000 orders

dlt keeps its state with the data that it loads. A run that fails is loaded again from the same seq, and `seq` is the
key with which a destination can tell repeats.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import dlt

from topics import Client

PAGE_RECORDS = 1000


def records(url: str, topic: str) -> Any:
    # Columns that no record has yet, and so no type.
    texts = {name: {"data_type": "text"} for name in ("node", "tag")}

    @dlt.resource(name=topic, write_disposition="merge", primary_key="seq", columns=texts)
    def load() -> Iterator[list[dict[str, Any]]]:
        state = dlt.current.resource_state()
        with Client(url) as client:
            while True:
                page = client.read(topic, state.get("after_seq", 0), limit=PAGE_RECORDS)
                if page.tombstone is not None:
                    raise RuntimeError(f"{topic} lost records before they were loaded: {page.tombstone}")
                yield [
                    {"seq": each.seq, "ts": each.ts, "node": each.node, "tag": each.tag, "data": json.loads(each.data)}
                    for each in page.records
                ]
                state["after_seq"] = page.next_from_seq
                if page.caught_up:
                    return

    return load()


if __name__ == "__main__":
    url, topic = sys.argv[1:]
    pipeline = dlt.pipeline("topics", destination="duckdb", dataset_name="topics")
    print(pipeline.run(records(url, topic)))
