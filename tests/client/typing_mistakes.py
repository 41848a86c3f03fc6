# pyright: strict
"""Uses that both checkers must refuse: each line with `# wrong` is one. Nothing here is run."""

import topics


def use(client: topics.Client, other: topics.AsyncClient, log: topics.Log) -> None:
    client.create("jobs", type="stack")  # wrong
    client.create("jobs", durabilty="fsync")  # wrong
    client.tail("orders", wait_ms="1")  # wrong
    print(other.append("orders", [1]).last_seq)  # wrong
    topics.Worker(other, "jobs", print)  # wrong
    topics.AsyncTopic(log, "orders", int)  # wrong
    client.topic("orders", int).append(["text"])  # wrong
    client.producer("orders", linger="5")  # wrong
