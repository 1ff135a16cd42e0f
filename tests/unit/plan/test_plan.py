"""A plan: when a run counts as small, what is unread, where a topic starts, and the tables that an error stops."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError

from sluice.batch import Batch, PublishedOffsets
from sluice.contract import folder as contract_folder
from sluice.contract.contract import Contract
from sluice.contract.folder import TopicSettings
from sluice.contract.settings import Limits
from sluice.errors import OffsetsLostError, PartitionsGoneError, TableUnavailableError
from sluice.iceberg import table_names
from sluice.kafka import broker
from sluice.kafka.broker import TopicState
from sluice.ledger.offsets_table import Ledger
from sluice.offsets import OffsetRange
from sluice.plan import plan
from sluice.plan.batches import TopicProgress, plan_topic
from sluice.plan.model import SMALL_OFFSETS, SMALL_ROWS, GroupPlan, PlanInputs, TablePlan, TopicPlan

pytestmark = pytest.mark.unit

BODY = {
    "table": "db.t", "topic": "t", "group": "g", "owner": "tests", "columns": [{"name": "id", "type": "long"}],
    "identifier": ["id"], "mode": "upsert",
}  # fmt: skip


def batch(seq: int, span: int) -> Batch:
    return Batch("t", "id", seq, {0: OffsetRange(0, span)}, {0: span})


@pytest.mark.parametrize(
    ("to_stage", "pending", "rows", "changes", "small"),
    [
        (0, 0, 0, {}, True),
        (SMALL_OFFSETS, 0, SMALL_ROWS, {}, True),
        (SMALL_OFFSETS + 1, 0, 0, {}, False),
        (SMALL_OFFSETS // 2 + 1, SMALL_OFFSETS // 2 + 1, 0, {}, False),
        (1, 0, SMALL_ROWS + 1, {}, False),
        # What is appended is looked for nowhere.
        (1, 0, SMALL_ROWS + 1, {"mode": "append", "identifier": []}, True),
    ],
)
def test_a_run_is_small_by_what_it_reads_and_what_it_searches(to_stage, pending, rows, changes, small):
    contract = Contract.model_validate({**BODY, **changes})
    table = TablePlan(contract, {}, {"t": (batch(1, pending),)}, rows)
    found = GroupPlan("g", {"t": TopicPlan("t", None, (batch(2, to_stage),))}, {"db.t": table}, {})
    assert found.is_small is small


def test_what_was_unread_before_a_batch_counts_all_partitions_to_kafkas_end():
    ends = {0: OffsetRange(5, 100), 1: OffsetRange(0, 40), 2: OffsetRange(7, 9)}  # the last was added since
    topic = TopicPlan("t", None, state=TopicState("t", "id", ends, compacted=False, retention_ms=-1))
    assert topic.unread(Batch("t", "id", 1, {0: OffsetRange(10, 50)}, {0: 50, 1: 30})) == 90 + 10 + 2
    assert topic.unread(Batch("t", "id", 2, {0: OffsetRange(50, 100)}, {0: 100, 1: 40})) == 50 + 0 + 2
    assert TopicPlan("t", None).unread(batch(1, 5)) is None


def planned(start: object, marks: dict[int, tuple[int, int]], *published: PublishedOffsets) -> TopicPlan:
    """What is planned of a topic that neither staging nor the ledger knows."""
    state = TopicState("t", "id", {p: OffsetRange(*m) for p, m in marks.items()}, compacted=False, retention_ms=-1)
    settings = TopicSettings("t", "g", start, Limits(), False, ())
    progress = TopicProgress(settings, state, None, {}, published, {})
    return plan_topic(progress, None, extend=True)


@pytest.mark.parametrize("start", ["earliest", "latest", {0: 7}])
def test_where_staging_and_the_ledger_are_lost_the_tables_tell_where_to_go_on(start):
    behind, ahead = PublishedOffsets(5, "id", {0: 90, 1: 50}), PublishedOffsets(7, "id", {0: 100, 1: 50, 2: 4})
    (batch,) = planned(start, {0: (0, 500), 1: (0, 90), 2: (0, 9)}, ahead, behind).to_stage
    assert (batch.seq, batch.ranges) == (8, {0: (90, 500), 1: (50, 90), 2: (0, 9)})
    with pytest.raises(OffsetsLostError) as lost:  # in no silence, and there is a way to give them up
        planned(start, {0: (0, 500), 1: (80, 80), 2: (0, 9)}, ahead, behind)
    assert lost.value.fields["lost"] == {1: (50, 80)}
    with pytest.raises(PartitionsGoneError):
        planned(start, {0: (0, 500), 1: (0, 90)}, ahead, behind)
    # One that was made anew since is another topic.
    (other,) = planned("earliest", {0: (3, 9)}, PublishedOffsets(7, "of before", {0: 100})).to_stage
    assert (other.seq, other.ranges) == (8, {0: (3, 9)})


def test_a_plan_ends_at_given_offsets_though_the_log_goes_on():
    state = TopicState("t", "id", {p: OffsetRange(0, 100) for p in range(4)}, compacted=False, retention_ms=-1)
    settings, published = TopicSettings("t", "g", "earliest", Limits(), False, ()), PublishedOffsets(3, "id", {1: 60})
    ends = {0: 40, 1: 50, 2: 500}  # behind the cursor, and beyond the log end; none for the last partition
    progress = TopicProgress(settings, state, None, {}, (published,), {}, ends)
    (batch,) = plan_topic(progress, None, extend=True).to_stage
    assert batch.ranges == {0: (0, 40), 2: (0, 100), 3: (0, 100)}
    assert batch.next_offsets == {0: 40, 1: 60, 2: 100, 3: 100}
    assert plan_topic(replace(progress, ends=dict.fromkeys(range(4), 0)), None, extend=True).to_stage[0].span == 0


def test_a_topic_begins_no_later_than_it_ends_though_open_transactions_lie_behind(monkeypatch):
    monkeypatch.setattr(broker, "offsets_for_time", lambda *_: {0: 105, 1: 40, 2: -1})
    (batch,) = planned(datetime(2026, 1, 1, tzinfo=UTC), {0: (0, 100), 1: (0, 50), 2: (0, 9)}).to_stage
    assert (batch.start_offsets, batch.next_offsets) == ({0: 100, 1: 40, 2: 9}, {0: 100, 1: 50, 2: 9})


@pytest.mark.parametrize(
    ("refused", "staged"),
    [("secret", {"good", "other"}), ("sluice_staging.other", {"good"}), ("load sluice_staging.other", {"good"})],
)
def test_what_fails_for_one_table_though_the_catalog_answers_stops_no_other(tmp_path, monkeypatch, refused, staged):
    folder = tmp_path / "contracts"
    folder.mkdir()
    for table, topic in (("shop.a", "good"), ("secret.b", "other")):
        body = {**BODY, "table": table, "topic": topic, "mode": "append", "identifier": []}
        (folder / f"{table}.yaml").write_text(yaml.safe_dump(body))
    known = contract_folder.load_contracts(folder)
    state = lambda topic: TopicState(topic, f"id {topic}", {0: OffsetRange(0, 5)}, compacted=False, retention_ms=-1)  # noqa: E731
    monkeypatch.setattr(broker, "describe_topics", lambda _, topics: {t: state(t) for t in topics})
    lake = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    asked = []
    method = "load_table" if refused.startswith("load ") else "create_table"

    real = getattr(lake, method)

    def refuse(identifier, *given, **named):
        if ".".join(identifier).startswith(refused.removeprefix("load ")):
            asked.append(identifier)
            raise ForbiddenError("not authorized")
        return real(identifier, *given, **named)

    monkeypatch.setattr(lake, method, refuse)
    found = plan.write_plan(known.group("g"), PlanInputs(known, lake, None), run_id="r")
    assert {t.topic for t in found.topics.values() if t.to_stage} == staged
    assert list(found.stops) == ["secret.b"] and isinstance(found.stops["secret.b"], TableUnavailableError)
    assert "ForbiddenError: not authorized" in str(found.stops["secret.b"]) and "table secret.b" in str(found.stops)
    assert len(asked) == 2  # an answer may have been lost
    assert {row.topic for row in Ledger(lake).rows({"good": 0, "other": 0})} == staged
    # One that is away is not the table's fault.
    monkeypatch.setattr(lake, "list_namespaces", lambda: (_ for _ in ()).throw(ConnectionError("away")))
    with pytest.raises(ConnectionError):
        plan.write_plan(known.group("g"), PlanInputs(known, lake, None), run_id="again")
    lake.close()


def test_without_the_masking_key_nothing_is_frozen_for_what_needs_it(tmp_path, monkeypatch):
    folder = tmp_path / "contracts"
    folder.mkdir()
    masked = [{"name": "id", "type": "long"}, {"name": "mail", "type": "string", "mask": "sha256"}]
    for table, topic, columns in (
        ("db.masked", "own", masked),
        ("db.beside", "shared", masked),
        ("db.plain", "shared", masked[:1]),
    ):
        body = {**BODY, "table": table, "topic": topic, "columns": columns}
        (folder / f"{table}.yaml").write_text(yaml.safe_dump(body))
    known = contract_folder.load_contracts(folder)
    state = lambda topic: TopicState(topic, f"id {topic}", {0: OffsetRange(0, 5)}, compacted=False, retention_ms=-1)  # noqa: E731
    monkeypatch.setattr(broker, "describe_topics", lambda _, topics: {t: state(t) for t in topics})
    lake = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")

    def frozen() -> tuple[set[str], set[str]]:
        found = plan.write_plan(known.group("g"), PlanInputs(known, lake, None), run_id="r")
        assert all("SLUICE_MASK_KEY" in str(error) for error in found.stops.values())
        return set(found.stops), {row.topic for row in Ledger(lake).rows({"own": 0, "shared": 0})}

    monkeypatch.setenv("SLUICE_MASK_KEY", "too short")
    assert frozen() == ({"db.masked", "db.beside"}, {"shared"})
    monkeypatch.setenv("SLUICE_MASK_KEY", "a secret of 16 bytes or more")
    assert frozen() == (set(), {"own", "shared"})
    lake.close()


def test_the_longest_topics_staging_has_a_name_that_file_systems_and_catalogs_take():
    longest = {f"{end}.{'y' * 247}" for end in "ab"} | {f"a.{'y' * 246}{end}" for end in "ab"}
    names = {table_names.staging(topic)[1] for topic in longest}
    assert len(names) == 4 and {len(name) for name in names} == {255}
