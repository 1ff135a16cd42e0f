"""An unclean leader election truncates a log that then grows past what was read: the plan says so, until accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sluice.batch import LEADER_EPOCHS, STEP
from sluice.errors import BrokerUnavailableError, LogTruncatedError, RefusedError
from sluice.iceberg import catalog as iceberg_catalog
from sluice.iceberg import tables
from sluice.kafka import broker, log_truncation
from sluice.kafka.log_truncation import ReadUpTo
from sluice.offsets import encode_offsets
from sluice.operate import accept_gap
from sluice.operate.operator_input import Decision
from sluice.plan.model import GroupPlan, PlanInputs
from tests.support.light_lake import LightLake
from tests.support.services.kafka_cluster import KafkaCluster, three_brokers, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


class ClusterLake(LightLake):
    """The topic's first partition may elect an unclean leader; the first broker, which stays, leads the other."""

    def create_topic(self) -> None:
        unclean = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        topic = NewTopic(self.topic, 2, replica_assignment=[[2, 3], [1, 2]], config=unclean)
        self.admin.create_topics([topic])[self.topic].result(30)

    def run(self) -> GroupPlan:
        """Plan, and stage all batches as Spark does."""
        planned = self.plan()
        found = planned.topics[self.topic]
        if self.topic not in planned.broken:
            for batch in found.to_stage:
                epochs = {LEADER_EPOCHS: encode_offsets(found.state.leader_epochs)} if found.state else {}
                staging = tables.ensure_staging(self.catalog, self.topic)
                self._commit(staging, batch, {STEP: "stage", **batch.properties(), **epochs})
        return planned

    def accept(self, **ranges: tuple[int, int]) -> list[accept_gap.Gap]:
        inputs = PlanInputs(self.contracts, self.catalog, self.admin)
        given = {int(p[1:]): r for p, r in ranges.items()}
        return accept_gap.accept_gaps(self.topic, given, inputs, Decision("ann", "checked", "test"), dry_run=False)


def elect_unclean(cluster: KafkaCluster, it: ClusterLake) -> None:
    """Let the first partition lose all that was sent since broker 3 was killed."""
    cluster.node(2).kill()
    cluster.node(3).start()
    until(lambda: cluster.leader(it.topic) == 3)


def test_a_truncated_log_that_has_grown_again_stops_the_topic(
    tmp_path: Path, sluice_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "contracts").mkdir()
    with three_brokers(tmp_path / "cluster") as cluster:
        it = ClusterLake(tmp_path / "contracts", cluster.bootstrap, iceberg_catalog.load())
        until(lambda: cluster.leader(it.topic) == 2)
        it.send(0, 10)
        it.send(1, 5)
        it.run()
        cluster.node(3).kill()
        it.send(0, 10)
        it.run()
        # The leader's epoch is the same: Kafka is not asked.
        with monkeypatch.context() as patch:
            patch.setattr(log_truncation.login, "make_consumer", None)
            assert not it.plan().broken
        elect_unclean(cluster, it)
        it.send(0, 30)
        stopped = it.run()
        error = stopped.broken[it.topic]
        assert isinstance(error, LogTruncatedError) and error.fields["lost"] == {0: (10, 20)}, error
        assert "{0: (10, 20)}" in str(stopped.stops["db.events"]) and "gaps.md" in str(stopped.stops["db.events"])
        assert not stopped.topics[it.topic].to_stage
        # Retention has taken a part, or all, of what was read.
        it.admin.delete_records([TopicPartition(it.topic, 0, 15)])[TopicPartition(it.topic, 0)].result(30)
        assert it.plan().broken[it.topic].fields["lost"] == {0: (15, 20)}
        with pytest.raises(RefusedError):
            it.accept(p0=(10, 20))
        (gap,) = it.accept(p0=(15, 20))
        assert str(gap).endswith("5 offsets, replaced in Kafka by records that are missing in db.events")
        (batch,) = it.run().topics[it.topic].to_stage
        assert batch.ranges == {0: (20, 40)} and not batch.gaps
        assert not it.run().broken
        _ask_about_every_history(broker.make_admin_client({"bootstrap.servers": cluster.bootstrap}), it.topic)


def _ask_about_every_history(client: AdminClient, topic: str) -> None:
    asked = {(topic, 0): ReadUpTo(40, 0), (topic, 1): ReadUpTo(5, 0)}
    assert log_truncation.find_truncated(client, asked) == {(topic, 0): 15}
    state = broker.describe_topics(client, [topic])[topic]
    assert isinstance(state, broker.TopicState)
    assert log_truncation.find_truncated(client, {(topic, 0): ReadUpTo(40, state.leader_epochs[0])}) == {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_truncation, "TIMEOUT_S", 3.0)
        with pytest.raises(BrokerUnavailableError, match="partition 7"):
            log_truncation.find_truncated(client, {(topic, 7): ReadUpTo(1, 0)})
