"""Expectations warn, quarantine rows or block a batch; their results are stored per batch and contain no values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import functions as F

from sluice.batch import Batch
from sluice.formats.internal_columns import DETAIL, ERROR, FIELD, OP
from sluice.iceberg import table_names, tables
from sluice.ingest import check, expectations, great_expectations
from sluice.ledger import quality_table
from sluice.ledger.slices import Origin
from sluice.status import text as status_text
from sluice.status.model import ExpectationsSummary, Status, TableStatus
from tests.support import runbook
from tests.support.backfills import backfill_request, run_backfill
from tests.support.lake import Lake

SECRET = "s3cr3t-4711"
TEXT = "expect_column_values_to_match_regex"
RANGE = "expect_column_values_to_be_between"
ROWS = "expect_table_row_count_to_be_between"
MEAN = "expect_column_mean_to_be_between"
NULLS = "expect_column_values_to_not_be_null"
NEWEST = "expect_column_max_to_be_between"


def on(type_: str, column: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": type_, **({"column": column} if column else {}), **more}


def results(it: Lake, table: str, batch: int) -> dict[str, quality_table.ExpectationResult]:
    """A batch's results, by expectation and column; each stands once."""
    found = [r for r in everything(it, table) if r.batch_seq == batch]
    by_name = {f"{r.expectation}({r.column})": r for r in found}
    assert len(by_name) == len(found), "a result stands twice"
    return by_name


def everything(it: Lake, table: str) -> list[quality_table.ExpectationResult]:
    kept = tables.load(it.catalog, table_names.QUALITY)
    assert kept is not None
    rows = kept.scan().to_arrow().to_pylist()
    return [quality_table.ExpectationResult(**r) for r in rows if r["table"] == table]


def record(n: int) -> dict[str, Any]:
    text = None if n == 61 else SECRET if n == 120 else f"record {n}"
    return {"n": 10_000 if n == 60 else n, "text": text}


COMMON: dict[str, Any] = {"limits": {"records_per_batch": 60}, "errors": {"max_ratio": 0.2}}
DRIFT = on(MEAN, "n", drift={"tolerance": 0.5, "batches": 2, "at_least": 2}, severity="block")
TOLD = [
    on(NULLS, "n"),
    on(RANGE, "n", max_value=89, mostly=0.9),
    on(RANGE, "_kafka_timestamp", min_value="2024-01-01T00:00:00Z"),
    on(TEXT, "text", regex="^record"),
    on("expect_column_values_to_be_unique", "n"),
    on("expect_compound_columns_to_be_unique", column_list=["id", "n"]),
    on("expect_column_pair_values_a_to_be_greater_than_b", column_A="n", column_B="_kafka_offset", or_equal=True),
    on(NEWEST, "_kafka_timestamp", max_age="1h"),
    on(ROWS, drift={"tolerance": 0.5, "at_least": 2}),
]


def test_batches_are_judged_one_by_one(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    table = it.contract(**COMMON, expectations=[*TOLD, DRIFT])
    it.send((n % 2, f"k{n}", record(n)) for n in range(100))
    outcome = it.run()[table]
    assert outcome["state"] == "published", outcome
    first, second = (results(it, table, n) for n in (1, 2))
    assert len(first) == len(second) == len(TOLD) + 1
    assert not any(r.error for r in everything(it, table)), everything(it, table)
    assert [r[f"{RANGE}(n)"].success for r in (first, second)] == [True, False]
    assert (second[f"{RANGE}(n)"].records, second[f"{RANGE}(n)"].unexpected) == (50, 11)
    failed = [name for r in (first, second) for name, each in r.items() if each.success is False]
    assert failed == [f"{RANGE}(n)"]
    assert (first[f"{MEAN}(n)"].success, first[f"{MEAN}(n)"].observed) == (None, 24.5)
    # What asset events carry.
    assert {k: v for k, v in outcome["expectations"].items() if k != "told"} == {
        "held": 15,
        "failed": 1,
        "not_judged": 4,
    }
    assert outcome["expectations"]["told"] == [f"{it.topic} batch 2, warn: {RANGE}(n): 11 of 50 rows fail"]

    it.send((n % 2, f"k{n}", record(n)) for n in range(100, 150))
    assert it.run()[table]["state"] == "published"
    third = results(it, table, 3)
    assert (third[f"{MEAN}(n)"].success, third[f"{ROWS}()"].success) == (True, True)
    assert third[f"{TEXT}(text)"].unexpected == 1
    assert SECRET not in str(everything(it, table))
    # Drift: two records, and a mean far from that of the two batches before.
    it.send([(0, "late", {"n": 1}), (1, "later", {"n": 1})])
    outcome = it.run()[table]
    assert outcome["state"] == "blocked"
    assert f"{MEAN}(n): observed 1, expected 99.45 to 298.35" in outcome["error"], outcome["error"]
    assert results(it, table, 4)[f"{ROWS}()"].success is False
    it.contract(table=table, **COMMON, expectations=[{**DRIFT, "severity": "warn"}])
    assert it.run()[table]["state"] == "published"
    assert {r.severity for r in results(it, table, 4).values()} == {"warn"}
    assert len(it.rows(table)) == 152
    # `status` tells of the batch that was judged last.
    status = TableStatus(table, it.group, "append", "tests")
    status.expectations = ExpectationsSummary.from_results(
        quality_table.read_latest_results(it.catalog, [table])[table]
    )
    assert (status.expectations.batch, status.expectations.held) == (4, 0)
    text = status_text.as_text(Status(datetime.now(UTC), [status]), details=True)
    assert "expected    0 passed, 1 failed, 0 not evaluated" in text, text
    assert f"warn: {MEAN}(n): observed 1," in text


@pytest.mark.usefixtures("generated_code")
def test_what_is_observed_is_what_great_expectations_finds_by_itself(lake: Callable[..., Lake]) -> None:
    """Aggregates beside the MERGE, in a pass of their own, and none at all: one and the same."""
    it = lake()
    span = {"min_value": 2, "max_value": 60}
    given = [on(f"expect_column_{each}_to_be_between", "n", **span) for each in ("mean", "stdev", "sum", "min", "max")]
    given += [
        on("expect_column_min_to_be_between", "_kafka_timestamp", max_value="2030-01-01T00:00:00Z"),
        on(ROWS, **span),
    ]
    given += [on("expect_column_proportion_of_non_null_values_to_be_between", "n", max_value=0.5)]
    given += [
        on(RANGE, "n", **span),
        on(RANGE, "n", min_value=40, mostly=0.2),
        on(NULLS, "n"),
        on(TEXT, "text", regex="2"),
    ]
    given += [on(TEXT, "text", regex="(?P<python>only)"), on("expect_column_values_to_be_null", "text")]
    given += [on("expect_column_value_lengths_to_be_between", "text", min_value=8)]
    given += [
        on("expect_column_values_to_be_in_set", "n", value_set=[1, 2, 3]),
        on(NEWEST, "_kafka_timestamp", max_age="1d"),
    ]
    contract = it.contract_of(it.contract(mode="upsert", expectations=given))
    rows = it.spark.range(90).select(
        F.when(F.col("id") % 7 > 0, F.col("id")).alias("n"),
        F.when(F.col("id") % 5 > 0, F.concat(F.lit("record "), F.col("id"))).alias("text"),
        F.current_timestamp().alias("_kafka_timestamp"),
        F.when(F.col("id") % 4 == 1, "d").otherwise("u").alias(OP),
        F.when(F.col("id") % 9 == 2, "malformed").alias(ERROR),
        F.lit(1).alias(check.SEQ),
        *[F.lit(None).cast("string").alias(name) for name in (DETAIL, FIELD)],
    )
    batch, watch = Batch(it.topic, "", 1, {}, {}), expectations.Evaluation(contract, rows)
    assert [e.given.get("regex") for e in contract.expectations if e not in watch.aggregates.expectations] == [
        "(?P<python>only)"
    ]
    watched, observation = check.observe_counts(rows, watch.columns)
    watched.write.format("noop").mode("overwrite").save()
    seen = check.read_observation(observation, 90)
    assert seen is not None and seen["_sluice_good"] == 59
    good = rows.where(F.col(ERROR).isNull() & (F.col(OP) == "u"))
    asked = [(e, great_expectations.resolve_parameters(contract, e, {})) for e in contract.expectations]
    by_itself = great_expectations.validate(contract, asked, good, great_expectations.KnownMetrics({}, [], watch.empty))
    counted = watch.evaluate([batch])
    observed = watch.evaluate([batch], (), seen)
    for (each, _), plain, *mine in zip(asked, by_itself, counted, observed, strict=True):
        for result in mine:
            found = {name: getattr(result, name) for name in plain}
            assert found == plain, (each.label, each.given)
    assert {r.success for r in observed} == {True, False}
    assert [bool(r.error) for r in observed] == [e.given.get("regex") == "(?P<python>only)" for e, _ in asked]


@pytest.mark.usefixtures("generated_code")
def test_days_and_moments_beyond_the_years_of_python_are_judged_like_any_other(lake: Callable[..., Lake]) -> None:
    it = lake()
    ends, spans = {"max": "2030-01-01", "min": "1990-01-01"}, {"at": "T00:00:00Z", "day": ""}
    given = [
        on(f"expect_column_{end}_to_be_between", column, **{f"{end}_value": day + time})
        for end, day in ends.items()
        for column, time in spans.items()
    ]
    columns = [{"name": "at", "type": "timestamptz"}, {"name": "day", "type": "date"}]
    for shown in (False, True):  # by aggregates, and by Great Expectations itself
        contract = it.contract_of(it.contract(columns=columns, expectations=given, expectations_show_values=shown))
        micros = F.element_at(F.array(F.lit(-(10**17)), F.lit(0), F.lit(2 * 10**18)), F.col("id").cast("int") + 1)
        rows = it.spark.range(3).select(
            F.timestamp_micros(micros).alias("at"),
            F.date_from_unix_date((micros / 86_400_000_000).cast("int")).alias("day"),
            F.lit("u").alias(OP),
            F.lit(1).alias(check.SEQ),
            *[F.lit(None).cast("string").alias(name) for name in (ERROR, DETAIL, FIELD)],
        )
        found = expectations.Evaluation(contract, rows).evaluate([Batch(it.topic, "", 1, {}, {})])
        assert [(r.success, r.error) for r in found] == [(False, None)] * 4, found


@pytest.mark.usefixtures("generated_code")
def test_a_text_that_a_regex_would_fill_the_stack_with_is_unexpected(lake: Callable[..., Lake]) -> None:
    """Spark takes a full stack for fatal: one such text ended the application, in each run."""
    it = lake()
    given = [on(TEXT, "text", regex="^((([a-z]|[0-9])+)[.])*[a-z]+$")]
    given += [on("expect_column_values_to_not_match_regex", "text", regex="(?:.|x)*b$"), on(TEXT, "text", regex="b$")]
    rows = it.spark.range(3).select(
        F.expr("concat(repeat('a.', element_at(array(1, 8191, 500000), int(id + 1))), 'b')").alias("text"),
        F.lit("u").alias(OP),
        F.lit(1).alias(check.SEQ),
        *[F.lit(None).cast("string").alias(name) for name in (ERROR, DETAIL, FIELD)],
    )
    for shown in (False, True):  # by aggregates, and by Great Expectations itself
        contract = it.contract_of(it.contract(expectations=given, expectations_show_values=shown))
        found = expectations.Evaluation(contract, rows).evaluate([Batch(it.topic, "", 1, {}, {})])
        assert [(r.unexpected, r.too_long, r.error) for r in found] == [(1, 1, None), (3, 1, None), (0, None, None)]
        assert "3 of 3 rows fail, 1 of them as their text is too long for the regex" in found[1].summary
    apart = it.contract_of(it.contract(expectations=[{**given[0], "severity": "quarantine_rows"}]))
    told = expectations.mark_failing_rows(rows, apart).orderBy(F.length("text")).select(ERROR, DETAIL).collect()
    why = f"{TEXT}(text): the text has more than 16,384 characters, too many for a regex that repeats a group"
    assert [tuple(row) for row in told] == [(None, None)] * 2 + [("expectation", why)]


def test_rows_that_fail_are_set_apart_and_come_back_when_the_contract_takes_them(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    given = [on(RANGE, "n", min_value=0, max_value=149), on(TEXT, "text", regex="^record [0-9]+$"), on(NULLS, "text")]
    apart = [{**each, "severity": "quarantine_rows"} for each in given]
    rest = [on(ROWS, max_value=1), on(NEWEST, "n", max_value=149, severity="block")]
    table = it.contract(**COMMON, mode="upsert", expectations=[*apart, *rest])
    it.send((n % 2, f"k{n}", record(n)) for n in range(50, 100))
    it.send((n % 2, f"k{n}", record(n)) for n in range(116, 126))
    it.send([(0, "bad", b"{"), (1, "k51", None)])
    outcome = it.run()[table]
    # The sum is exact: records = rows + rejected + deleted, the tombstone and its row.
    assert (outcome["state"], outcome["records"], outcome["rejected"]) == ("published", 62, 4), outcome
    assert len(it.rows(table)) == 62 - 4 - 2
    found = {(r["error_class"], r["error"], r["field"]) for r in it.quarantined(table)}
    assert found == {
        ("expectation", f"{RANGE}(n)", "n"),
        ("expectation", f"{NULLS}(text)", "text"),
        ("expectation", f"{TEXT}(text)", "text"),
        ("malformed", "the value cannot be parsed as a JSON object with fields of the contract's types", None),
    }
    judged = [r for r in everything(it, table) if r.severity == "quarantine_rows"]
    assert sum(r.unexpected or 0 for r in judged) == 3
    assert sum(r.records for r in judged if r.expectation == TEXT) == 60
    newest = [r.success for r in everything(it, table) if r.expectation == NEWEST]
    assert newest and all(newest), "the rows that were set apart are not looked at by the others"
    assert SECRET not in str(everything(it, table))
    # A backfill holds them too: the record that passes now leaves the quarantine, the others stay.
    it.contract(table=table, **COMMON, mode="upsert", expectations=[apart[0], *apart[2:], *rest])
    (outcome,) = run_backfill(it, backfill_request(table, {0: [0, 31], 1: [0, 31]}, origin=Origin.QUARANTINE))
    assert outcome["snapshot_id"], outcome
    assert SECRET in {r["text"] for r in it.rows(table)}
    assert sorted(r["error_class"] for r in it.quarantined(table)) == ["expectation"] * 2 + ["malformed"]
    assert results(it, table, -1)[f"{RANGE}(n)"].unexpected == 1


def test_a_batch_that_is_blocked_waits_in_staging_for_the_contract(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    strict = on(TEXT, "text", regex="^record", severity="block")
    table = it.contract(**COMMON, expectations=[strict], expectations_show_values=True)
    it.send((n % 2, f"k{n}", record(n)) for n in range(100, 140))
    for _ in range(2):  # run again, it is blocked again, and its results stand there once
        outcome = it.run()[table]
        assert (outcome["state"], outcome["quarantined"]) == ("blocked", 0)
        for part in (table, "batch 1", f"{TEXT}(text): 1 of 40 rows fail", "sluice.quality", "severity: warn"):
            assert part in outcome["error"], outcome["error"]
        assert it.rows(table) == []
        (row,) = runbook.run_sql(it, "SELECT * FROM sluice.quality", table=table, batch=1)
        assert row.unexpected == 1
        # A value is shown in the results alone, and there because the contract says so.
        assert SECRET in str(results(it, table, 1)[f"{TEXT}(text)"].values)
        assert SECRET not in outcome["error"]
    it.contract(table=table, **COMMON, expectations=[{**strict, "severity": "quarantine_rows"}])
    outcome = it.run()[table]
    assert (outcome["state"], outcome["records"], outcome["rejected"]) == ("published", 40, 1), outcome
    assert len(it.rows(table)) == 39
    (result,) = results(it, table, 1).values()
    assert (result.severity, result.unexpected) == ("quarantine_rows", 1)
    assert SECRET not in str(everything(it, table))


def test_what_lost_its_raw_record_is_never_read_again(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    body: dict[str, Any] = {"columns": [{"name": "text", "type": "string", "source": "$value"}]}
    body |= {"value": {"format": "string"}}
    digits = on(TEXT, "text", regex="^[0-9]+$", severity="quarantine_rows")
    table = it.contract(**body, errors={"max_ratio": 0.5, "raw": "drop"}, expectations=[digits])
    it.send([(0, "a", "1"), (0, "b", "2"), (0, "c", "three")])
    assert it.run()[table]["state"] == "published"
    it.contract(table=table, **body, errors={"max_ratio": 0.5, "raw": "keep"})
    run_backfill(it, backfill_request(table, origin=Origin.QUARANTINE))
    assert len(it.rows(table)) == 2 and "" not in {row["text"] for row in it.rows(table)}
    assert [row["_kafka_offset"] for row in it.quarantined(table)] == [2]
    run_backfill(it, backfill_request(table, {0: [2, 3]}), "from Kafka")
    assert len(it.rows(table)) == 3 and not it.quarantined(table)


def test_a_soft_delete_is_not_judged(lake: Callable[..., Lake]) -> None:
    """It tells of an end, by what it has: set apart, the row would go on."""
    it = lake()
    it.create_topic(1)
    columns = [
        {"name": "id", "type": "long", "required": True},
        {"name": "mail", "type": "string"},
        {"name": "gone", "type": "boolean", "source": "$deleted"},
    ]
    body = {"mode": "upsert", "identifier": ["id"], "columns": columns, "cdc": {"format": "debezium"}}
    there = [on(NULLS, "mail", severity="quarantine_rows"), on(NULLS, "mail", severity="block")]
    table = it.contract(**body, deletes="soft", errors={"max_ratio": 0.5}, expectations=there)
    it.send((0, str(n), {"op": "c", "before": None, "after": {"id": n, "mail": "a@x"}}) for n in (1, 2))
    assert it.run()[table]["state"] == "published"
    it.send([(0, "1", {"op": "d", "before": {"id": 1, "mail": None}, "after": None})])
    outcome = it.run()[table]
    assert outcome["state"] == "published", outcome
    assert not it.quarantined(table)
    assert {row["id"]: row["gone"] for row in it.rows(table)} == {1: True, 2: False}


@pytest.mark.usefixtures("generated_code")
def test_a_statistic_of_nothing_stops_nothing_and_a_regex_that_is_none_is_named(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    spread = [on("expect_column_stdev_to_be_between", "n", max_value=1e6), on(NEWEST, "n", max_value=1e6)]
    table = it.contract(expectations=[{**each, "severity": "block"} for each in spread])
    broken = it.contract(expectations=[on(TEXT, "text", regex="(?P<year>[0-9]+)", severity="quarantine_rows")])
    for batch, (n, judged) in enumerate(((None, [None, None]), (7, [None, True])), start=1):
        it.send([(0, "k", {"n": n, "text": "a"})])
        outcomes = it.run()
        assert outcomes[table]["state"] == "published", outcomes
        assert sorted((r.success for r in results(it, table, batch).values()), key=str) == judged
        assert "match_regex(text)" in outcomes[broken]["error"] and "Java does not accept" in outcomes[broken]["error"]


def test_how_many_records_a_repair_brings_is_not_judged(lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(1)
    rows = on(ROWS, min_value=2, severity="block")
    body = {"errors": {"max_ratio": 0.5}}
    table = it.contract(**body, expectations=[rows, on(RANGE, "n", max_value=100, severity="quarantine_rows")])
    it.send((0, f"k{n}", {"n": n, "text": "a"}) for n in (1, 2, 1_000))
    assert it.run()[table]["state"] == "published"
    it.contract(table=table, **body, expectations=[rows])
    (outcome,) = run_backfill(it, backfill_request(table, origin=Origin.QUARANTINE))
    assert outcome["snapshot_id"] and not it.quarantined(table), outcome
    it.assert_appended(table)
