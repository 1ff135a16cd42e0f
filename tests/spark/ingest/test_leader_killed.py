"""A cluster of three brokers loses the leader of a partition in mid-batch, and the batch goes on with the next leader.

`make test-infra` runs it; see docs/dev/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from sluice.batch import LEADER_EPOCHS
from sluice.errors import LogTruncatedError
from sluice.iceberg import table_names
from sluice.offsets import decode_offsets
from sluice.operate import accept_gap
from sluice.operate.operator_input import Decision
from sluice.plan.model import PlanInputs
from tests.support.lake import Lake, record
from tests.support.services.kafka_cluster import KafkaCluster, three_brokers, until

pytestmark = [pytest.mark.infra, pytest.mark.timeout(600)]

RECORDS = 400_000
REPLICAS = [[2, 3, 1], [3, 2, 1], [2, 3, 1], [3, 2, 1]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    # Only the first broker, which stays, has the internal topics: they have one replica.
    with three_brokers(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def on_cluster(lake: Callable[..., Lake], cluster: KafkaCluster, replicas: list[list[int]], **config: str) -> Lake:
    """A topic on the cluster with these replicas."""
    made = lake()
    it = Lake(made.spark, made.catalog, cluster.bootstrap, made.folder)
    topic = NewTopic(it.topic, len(replicas), replica_assignment=replicas, config=config)
    it.admin.create_topics([topic])[it.topic].result(30)
    until(lambda: cluster.leader(it.topic) == replicas[0][0])
    return it


@pytest.mark.parametrize("killed", [2, 3])
def test_the_leader_is_killed_in_mid_batch(
    lake: Callable[..., Lake], spark: SparkSession, cluster: KafkaCluster, killed: int
) -> None:
    it = on_cluster(lake, cluster, REPLICAS, **{"min.insync.replicas": "2"})
    tables = [it.contract(), it.contract(mode="upsert")]
    it.send((n % 4, f"k{n % 4}-{n % 5000}", record(n)) for n in range(RECORDS))
    tracker = spark.sparkContext.statusTracker()
    with ThreadPoolExecutor() as pool:
        batch = pool.submit(it.run)
        until(lambda: bool(tracker.getActiveStageIds()) or batch.done())
        assert not batch.done(), "the batch ended too early: it needs more records"
        cluster.node(killed).kill()
        outcomes = batch.result()
    until(lambda: killed not in {cluster.leader(it.topic, p) for p in range(4)})
    assert {o["state"] for o in outcomes.values()} == {"published"}, outcomes
    # Records keep coming while the broker is away, and after it is back.
    it.send((n % 4, f"k{n % 4}-{n}", record(n)) for n in range(500))
    assert {o["state"] for o in it.run().values()} == {"published"}
    cluster.node(killed).start()
    it.send((n % 4, f"k{n % 4}-{n}", record(n)) for n in range(500, 1000))
    assert {o["state"] for o in it.run().values()} == {"published"}
    for table in tables:
        it.assert_published(table)


def test_a_table_continues_after_a_truncation_that_was_accepted(
    lake: Callable[..., Lake], cluster: KafkaCluster
) -> None:
    """The batch's own commit carries the epochs: tests/system/embedded/test_truncated_log.py has the other cases."""
    unclean = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    it = on_cluster(lake, cluster, [[2, 3]], **unclean)
    table = it.contract()
    it.send((0, f"k{n}", record(n)) for n in range(10))
    assert it.run()[table]["state"] == "published"
    cluster.node(3).kill()
    it.send((0, f"k{n}", record(n)) for n in range(10, 20))
    assert it.run()[table]["state"] == "published"
    staged = it.catalog.load_table(table_names.staging(it.topic)).current_snapshot()
    assert staged and staged.summary and 0 in decode_offsets(str(staged.summary[LEADER_EPOCHS]))
    lost = {o: it.sent[0].pop(o) for o in range(10, 20)}
    cluster.node(2).kill()
    cluster.node(3).start()
    until(lambda: cluster.leader(it.topic) == 3)
    it.send((0, f"k{n}", record(n)) for n in range(100, 130))
    outcome = it.run()[table]
    assert outcome["red"] and "{0: (10, 20)}" in outcome["error"], outcome
    assert isinstance(it.preview_plan().broken[it.topic], LogTruncatedError)
    accept_gap.accept_gaps(
        table, None, PlanInputs(it.contracts, it.catalog, it.admin), Decision("ann", "test", "test"), dry_run=False
    )
    assert it.run()[table]["state"] == "published"
    it.sent[0] |= lost
    it.assert_appended(table)
    cluster.node(2).start()
