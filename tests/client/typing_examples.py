# pyright: strict
"""Uses of the public types. Nothing here is run: `test_typing.py` has mypy and pyright check it, both strict."""

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass
from typing import assert_type

import topics
from topics import Record, Tombstone
from topics.protocol.response_body import Appended, TopicState


@dataclass
class Order:
    id: int


def use_client(client: topics.Client) -> None:
    assert_type(client.create("jobs", type="queue", max_deliveries=5), bool)
    assert_type(client.append("orders", [{"id": 1}, Order(1)]), Appended)
    assert_type(client.state("orders"), TopicState)
    assert_type(client.read("orders").records, list[Record])
    assert_type(client.read("orders").tombstone, Tombstone | None)
    assert_type(client.claim("jobs", "w", wait_ms=None), list[topics.Job])
    assert_type(client.ack("jobs", "w", [1]), topics.Settled)
    assert_type(client.group("orders", "g"), topics.GroupCursor)
    for record in client.read_all("orders", loss="raise"):
        assert_type(record, Record)
    for item in client.tail("orders"):
        assert_type(item, Record | Tombstone)
    for topic, seen in client.watch({"orders": "head", "audit.*": 0}):
        assert_type(topic, str)
        assert_type(seen, Record | Tombstone | topics.TopicGone)
    with client.producer("orders", linger_ms=5) as producer:
        assert_type(producer.append({"id": 1}, tag="t"), Future[int])
    client.with_options(deadline_s=2.0).append("orders", [1])

    @client.worker("jobs", concurrency=4)
    def work(job: topics.Job) -> None:
        assert_type(job.data, bytes)

    assert_type(work, topics.Worker)
    work.run()


def use_typed(client: topics.Client, log: topics.Log) -> None:
    orders = client.topic("orders", Order)
    assert_type(orders, topics.Topic[Order])
    embedded = topics.Topic(log, "orders", Order)
    assert_type(embedded, topics.Topic[Order])
    for both in (orders, embedded):
        both.append([Order(1)], tag="customer-7")
        for record in both.read_all(loss="raise"):
            assert_type(record.data, Order)
        for item in both.tail(group="billing"):
            if not isinstance(item, Tombstone):
                assert_type(item, topics.TypedRecord[Order])
        for job in both.claim("w"):
            assert_type(job, topics.TypedJob[Order])
            both.ack("w", [job])

        @both.worker(lease_ms=5000)
        def work(job: topics.TypedJob[Order]) -> int:
            return job.data.id

        assert_type(work, topics.Worker)


def use_embedded(log: topics.Log) -> None:
    @topics.worker(log, "jobs", retry_delay_ms=lambda job, error: job.deliveries * 1000)
    def work(job: topics.Job) -> None:
        print(job.seq)

    work.run()
    with topics.Producer(log, "orders") as producer:
        producer.append(Order(1)).result()


async def use_async(client: topics.AsyncClient, log: topics.AsyncLog) -> None:
    assert_type(await client.create("jobs", type="queue"), bool)
    assert_type(await client.append("orders", [Order(1)]), Appended)
    assert_type(await client.state("orders"), TopicState)
    assert_type((await client.read("orders")).records, list[Record])
    assert_type(await client.claim("jobs", "w"), list[topics.Job])
    async for record in client.read_all("orders", loss="raise"):
        assert_type(record, Record)
    async for item in client.tail("orders"):
        assert_type(item, Record | Tombstone)
    async for topic, seen in client.watch(["orders", "audit.*"]):
        assert_type(topic, str)
        assert_type(seen, Record | Tombstone | topics.TopicGone)
    async with client.producer("orders") as producer:
        assert_type(await producer.append({"id": 1}), asyncio.Future[int])
    orders = client.topic("orders", Order)
    assert_type(orders, topics.AsyncTopic[Order])
    for both in (orders, topics.AsyncTopic(log, "orders", Order)):
        async for typed in both.read_all(loss="raise"):
            assert_type(typed.data, Order)

    @client.worker("jobs")
    async def work(job: topics.Job) -> None:
        print(job.seq)

    assert_type(work, topics.AsyncWorker)
    await work.run()
    await topics.AsyncWorker(log, "jobs", work).run()


def use_errors(client: topics.Client) -> None:
    try:
        client.append("orders", [1])
    except topics.Unreachable as error:
        assert_type(error.retriable, bool)
    except topics.TopicsError as error:
        assert_type(error.code, str)


def use_plugin() -> None:
    from topics.testing.server_process import ServerProcess

    with ServerProcess(max_topics=10) as server:
        assert_type(server.url, str)
