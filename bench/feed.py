"""Creates topics and fills them with records, with one process per core."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable

from bench.lab import value

PARTITIONS = 4


def create(bootstrap: str, topics: Iterable[str], partitions: int = PARTITIONS) -> None:
    """Create topics."""
    from confluent_kafka.admin import NewTopic

    from sluice.kafka import broker

    admin = broker.make_admin_client({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(t, num_partitions=partitions, replication_factor=1) for t in topics])
    for future in made.values():
        future.result(60)


def key(number: int) -> str:
    """Return the key with that number: as long as a typical identifier, and in the numbers' order."""
    return f"order-{number:010d}"


def backlog(bootstrap: str, topic: str, records: int, keys: int, partitions: int = PARTITIONS) -> None:
    """Fill a topic with `records` records over `keys` distinct keys, each key in one partition."""
    if records < 10_000:  # fewer than it pays to start processes for
        send(bootstrap, topic, ((n % keys, n) for n in range(records)), partitions)
        return
    shares = [(bootstrap, topic, records, keys, worker, partitions) for worker in (0, 1)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(_share, shares)


def _share(bootstrap: str, topic: str, records: int, keys: int, worker: int, partitions: int) -> None:
    # Each worker has its own partitions, so that a partition's records are in the order of the numbers.
    mine = [n % 2 == worker for n in range(partitions)]
    assert keys % partitions == 0
    numbers = ((n % keys, n) for n in range(records) if mine[n % partitions])
    send(bootstrap, topic, numbers, partitions)


def send(bootstrap: str, topic: str, numbers: Iterable[tuple[int, int]], partitions: int = PARTITIONS) -> None:
    """Send records, given as (key number, value number).

    Raises:
        RuntimeError: The broker did not acknowledge some.
    """
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 50,
            "batch.size": 500_000,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 500_000,
        }
    )
    for k, n in numbers:
        while True:
            try:
                producer.produce(topic, value(n), key=key(k), partition=k % partitions)
                break
            except BufferError:
                producer.poll(0.05)
    if remaining := producer.flush(120):
        raise RuntimeError(f"{remaining} records were not acknowledged")
