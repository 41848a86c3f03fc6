"""Records into a topic, and all of them out again."""

import json
from typing import Any

from topics.client.sync.client import Client


def fill(client: Client, topic: str, count: int, **config: object) -> None:
    client.create(topic, **config)
    records = [
        {"data": {"n": number}, "tag": f"t{number % 3}", "node": "n1", "meta": {"a": [number]}}
        | ({"meta": None} if number % 2 else {})
        for number in range(1, count + 1)
    ]
    for start in range(0, count, 500):
        client.append_encoded(topic, json.dumps(records[start : start + 500]).encode())


def all_records(client: Client, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    from_seq = 0
    while True:
        page = client.read(topic, from_seq, limit=1000)
        found += [
            {
                "seq": record.seq,
                "ts": record.ts,
                "data": json.loads(record.data),
                "meta": json.loads(record.meta) if record.meta is not None else None,
                "tag": record.tag,
                "node": record.node,
            }
            for record in page.records
        ]
        from_seq = page.next_from_seq
        if page.caught_up:
            return found
