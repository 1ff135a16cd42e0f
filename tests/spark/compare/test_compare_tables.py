"""Comparisons with tables as Kafka Connect's sink, Flink and others leave them, against differences that were made."""

from __future__ import annotations

import json
import math
import os
import random
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from sluice.compare import compare_tables
from sluice.compare.request import make_request
from sluice.compare.result import Comparison
from sluice.errors import RefusedError
from sluice.iceberg import catalog as iceberg_catalog
from sluice.iceberg import table_names, tables
from sluice.pages import comparison_report
from tests.support import runbook
from tests.support.backfills import delete_by_equality
from tests.support.lake import Lake

pytestmark = pytest.mark.spark
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
COLUMNS = [
    {"name": "id", "type": "string", "source": "$key"},
    {"name": "amount", "type": "double"},
    {"name": "city", "type": "string"},
    {"name": "mail", "type": "string", "mask": "sha256"},
    {"name": "at", "type": "timestamptz"},
]
OURS = "id, amount, city, mail, at, _kafka_topic, _kafka_partition, _kafka_offset, _kafka_timestamp"


def fill(it: Lake, rows: int = 1000, **changes: Any) -> str:
    """Make a typed table of its contract, and fill it."""
    name = it.contract(columns=COLUMNS, **changes)
    tables.ensure_typed(it.catalog, it.contract_of(name))
    sql(
        it,
        f"INSERT INTO {{}} ({OURS}) SELECT 'k' || id, id / 4, CASE WHEN id % 7 > 0 THEN 'c' || id % 5 END, 'hash', "
        f"timestampadd(SECOND, id, TIMESTAMP'2026-11-29 12:00:00Z'), 't', 0, id, "
        f"timestampadd(SECOND, id, TIMESTAMP'2026-11-29 12:00:00Z') FROM range({rows})",
        name,
    )
    return name


def sql(it: Lake, statement: str, *names: str) -> None:
    full = [table_names.spark_name(it.context().catalog_name, tuple(name.split("."))) for name in names]
    it.spark.sql(statement.format(*full))


def compare(it: Lake, table: str, other: str, **given: Any) -> Comparison:
    return compare_tables.compare(it.context(), it.contracts, make_request({"table": table, "other": other, **given}))


def counts(found: Comparison) -> tuple[int, int, int, dict[str, int]]:
    different = {c.name: c.different for c in found.columns if c.different}
    return found.only_ours.count, found.only_theirs.count, found.duplicates.count, different


def test_a_table_of_flink_with_equality_deletes(lake: Callable[..., Lake]) -> None:
    it = lake()
    ours, theirs = fill(it, mode="upsert"), f"db.{it.group}_flink"
    sql(
        it,
        "CREATE TABLE {} USING iceberg TBLPROPERTIES ('format-version'='2') AS "
        "SELECT id, amount, city, IF(id = 'k5', 'plain@text', 'hash') AS mail, CAST(at AS TIMESTAMP_NTZ) AS AT, "
        "1 AS extra FROM {}",
        theirs,
        ours,
    )
    sql(it, "INSERT INTO {} SELECT 'gone' AS id, amount, city, mail, AT, extra FROM {} LIMIT 3", theirs, theirs)
    delete_by_equality(it, theirs, "gone", column="id")

    equal = compare(it, ours, theirs)
    assert equal.verdict == "equal: 1,000 rows, 4 columns"
    assert (equal.buckets[0], equal.equal, equal.columns[0].name) == (0, True, "amount")
    assert dict(equal.not_compared)["mail"] == "it is masked in the contract"
    assert dict(equal.not_compared)["extra"] == f"only {theirs} has it"
    assert equal.notes == ("at: the timestamp without time zone is read as UTC",)
    newest = [side.commits[-1].newest for side in (equal.ours, equal.theirs)]
    assert newest == [NOON + timedelta(seconds=999), None], "Flink's table has no _kafka_timestamp"

    delete_by_equality(it, theirs, "k1", column="id")
    new = "SELECT '<i>new\x07', 1, 'x', 'secret', null, 1"
    sql(it, f"INSERT INTO {{}} SELECT * FROM {{}} WHERE id = 'k2' UNION ALL {new}", theirs, theirs)
    sql(
        it,
        "UPDATE {} SET amount = amount + CASE id WHEN 'k3' THEN 0.1 WHEN 'k15' THEN -0.25 WHEN 'k4' THEN 0.3 ELSE 0 "
        "END, city = CASE id WHEN 'k8' THEN NULL WHEN 'k7' THEN '' ELSE city END "
        "WHERE id IN ('k3', 'k4', 'k7', 'k8', 'k15')",
        theirs,
    )
    sql(it, "UPDATE {} SET amount = NULL WHERE id = 'k9'", ours)

    found = compare(it, ours, theirs, tolerance={"amount": 0.25}, masked_alike=["mail"])
    assert counts(found) == (1, 1, 1, {"amount": 2, "city": 2, "mail": 1})
    assert found.only_ours.examples == ("id=k1",)
    assert found.only_theirs.examples == ("id=<i>new\\x07",)
    assert found.duplicates.examples == ("id=k2 (1 and 2 rows)",)
    by_name = {c.name: c for c in found.columns}
    assert by_name["amount"].examples == (("id=k4", "1.0", "1.3"), ("id=k9", None, "2.25"))
    assert by_name["city"].examples == (("id=k7", None, ""), ("id=k8", "c3", None))
    assert by_name["mail"].examples == (("id=k5", "[masked]", "[masked]"),)
    assert 0 < found.buckets[0] <= 10, (
        "only buckets with a difference, or with values in two cells, are compared by row"
    )
    assert found.verdict == (
        f"different: 1 key is missing in {theirs}, 1 key is missing in {ours}, 1 key has duplicates, "
        "5 rows have other values (amount: 2, city: 2, mail: 1)"
    )
    page, data = comparison_report.render_report(found), found.model_dump_json()
    assert "&lt;i&gt;new\\x07" in page and "<i>new" not in page
    for text in (page, data, json.dumps(found.evidence()), *found.lines()):
        assert not [each for each in ("\x07", "plain@text", "secret") if each in text]
    assert "k1" not in json.dumps(found.evidence()), "no values of records are kept"

    why = runbook.run_command(it, "decide TABLE --why 'equal for two weeks' --yes", TABLE=ours)
    assert "Pilot 5: decision: relied on, decided by " in why and "equal for two weeks" in why
    assert "missing  Pilot 3: parallel run compared: never" in runbook.run_command(it, "decide TABLE", TABLE=ours)


def test_a_table_of_the_connect_sink_in_another_catalog_without_coordinates(
    lake: Callable[..., Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake()
    ours, theirs = fill(it, mode="append"), f"old.db.{it.group}_connect"
    for name in ("TYPE", "URI", "WAREHOUSE"):
        monkeypatch.setenv(f"PYICEBERG_CATALOG__OLD__{name}", os.environ[f"PYICEBERG_CATALOG__LAKE__{name}"])
    rows = it.catalog.load_table(ours).scan("id <> 'k999'", ("id", "amount", "city", "at")).to_arrow()
    rows = rows.rename_columns(["key", "amount", "city", "at"])
    with iceberg_catalog.load("old") as old:
        old.create_namespace_if_not_exists("db")
        old.create_table(theirs.removeprefix("old."), rows.schema).append(rows)
    with pytest.raises(RefusedError, match="has no column '_kafka_partition' to identify rows by") as error:
        compare(it, ours, theirs)
    assert "`--key COL …`" in str(error.value)
    named = {"key": ["id"], "columns": {"key": "id"}, "time_column": "at"}
    whole = compare(it, ours, theirs, **named, until=NOON + timedelta(seconds=999), since=NOON + timedelta(seconds=100))
    assert (whole.verdict, whole.theirs.rows) == ("equal: 899 rows, 4 columns", 899)
    assert whole.theirs.commits[-1].newest == NOON + timedelta(seconds=998)
    assert whole.theirs.interval is None and whole.ours.snapshot_id is not None

    # A view, which has no snapshot, of a table with the coordinates under other names.
    view = f"db.{it.group}_view"
    sql(
        it,
        "CREATE VIEW {} AS SELECT _kafka_partition AS p, _kafka_offset AS o, amount FROM {} WHERE amount > 1",
        view,
        ours,
    )
    names = {"columns": {"p": "_kafka_partition", "o": "_kafka_offset"}, "offsets": {0: (5, 50)}}
    seen = compare(it, ours, f"{it.context().catalog_name}.{view}", **names)
    assert (seen.verdict, seen.theirs.snapshot_id) == ("equal: 45 rows, 3 columns", None)
    assert counts(compare(it, ours, view, **names | {"offsets": {0: (0, 50)}})) == (5, 0, 0, {})

    with pytest.raises(RefusedError, match="has no column '_kafka_timestamp' to choose rows by"):
        compare(it, ours, theirs, **named | {"since": NOON, "time_column": "_kafka_timestamp"})
    with pytest.raises(RefusedError, match=r"can't read db\.none"):
        compare(it, ours, "db.none")


def _value(kind: str, chance: random.Random) -> Any:
    pools: dict[str, list[Any]] = {
        "k": [None, "a", "b"],
        "d": [None, 0.0, -0.0, math.nan, math.inf, 0.24999, 0.25, 0.5, -0.5, 0.75, 1e300, 2.0**52 + 1, 2.0**52 + 2],
        "n": [None, Decimal("0.10"), Decimal("0.20"), Decimal("99999999.99"), Decimal("-0.15")],
        "s": [None, "", "a", "b"],
        "u": [None, "", "a", "b"],
        "t": [None, NOON, NOON + timedelta(microseconds=1), NOON + timedelta(milliseconds=2)],
        "r": [None, (None, "a"), ("a", None), (None, None), ("a", "a")],
        "l": [None, [], [None, "a"], ["a", None], ["a"]],
        "m": [None, {}, {"a": None, "b": "a"}, {"b": "a", "a": None}, {"a": "a"}],
    }
    return chance.choice(pools[kind])


TOLERANCE = {"d": Decimal("0.5"), "n": Decimal("0.1"), "t": Decimal("0.001")}


def _same(kind: str, one: Any, another: Any) -> bool:
    if one is None or another is None or one == another:
        return one is another or one == another
    if kind not in TOLERANCE:
        return False
    if kind == "t":
        return abs(one - another) <= timedelta(seconds=float(TOLERANCE["t"]))
    if kind == "d" and math.isnan(one) and math.isnan(another):
        return True
    return bool(abs(one - another) <= (TOLERANCE[kind] if kind == "n" else float(TOLERANCE[kind])))


def test_random_tables_against_a_comparison_in_python(lake: Callable[..., Lake]) -> None:
    it, chance, kinds = lake(), random.Random(43), "dnsutrlm"
    types = {"c": "int", "k": "string", "d": "double", "n": "decimal(10, 2)", "s": "string", "u": "string"}
    types |= {"t": "timestamptz", "r": "struct<x: string, y: string>", "l": "list<string>", "m": "map<string, string>"}
    columns = [{"name": name, "type": kind} for name, kind in types.items()]
    ours, theirs = it.contract(columns=columns), f"db.{it.group}_random"
    tables.ensure_typed(it.catalog, it.contract_of(ours))
    names = ["c", "k", *kinds]
    rows: dict[str, list[tuple[Any, ...]]] = {ours: [], theirs: []}
    for case in range(3000):
        row = (case, _value("k", chance), *(_value(kind, chance) for kind in kinds))
        rows[ours] += [row] * (chance.random() < 0.98)
        if chance.random() < 0.3:  # one value differs; else the rows are equal
            at = chance.randrange(2, len(names))
            row = (*row[:at], _value(names[at], chance), *row[at + 1 :])
        rows[theirs] += [row] * chance.choices((0, 1, 2), (1, 97, 2))[0]
    schema = it.spark.table(table_names.spark_name("lake", tuple(ours.split(".")))).select(*names).schema
    for name, given in rows.items():
        full = table_names.spark_name("lake", tuple(name.split(".")))
        frame = it.spark.createDataFrame(given, schema)
        if name == theirs:
            frame.withColumn("n", frame["n"].cast("decimal(12,4)")).writeTo(full).create()
        else:
            coordinates = ("'t' AS _kafka_topic", "0 AS _kafka_partition", "0L AS _kafka_offset")
            frame.selectExpr("*", *coordinates, "NULL AS _kafka_timestamp").writeTo(full).append()

    by_key: dict[Any, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for side, name in enumerate((ours, theirs)):
        for row in rows[name]:
            by_key[row[:2]][side].append(row)
    wanted: dict[str, int] = defaultdict(int)
    for one, another in by_key.values():
        if len(one) == len(another) == 1:
            for n, kind in enumerate(kinds, 2):
                wanted[kind] += not _same(kind, one[0][n], another[0][n])
    only_ours = sum(not another for _, another in by_key.values())
    only_theirs = sum(not one for one, _ in by_key.values())
    twice = sum(len(another) == 2 for _, another in by_key.values())

    found = compare(it, ours, theirs, key=["c", "k"], tolerance=TOLERANCE)
    assert counts(found) == (only_ours, only_theirs, twice, {k: n for k, n in wanted.items() if n})
    assert set(wanted) == set(kinds) and all(wanted.values()), "each kind of value differs somewhere"
    assert found.buckets[0] < found.buckets[1] / 2, "most were found equal by their hashes alone"
