"""Expressions, conditions and masks of a contract, through the decoder on small frames of staged records."""

from __future__ import annotations

import hmac
import json
import re
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice import jvm
from sluice.contract.contract import Contract
from sluice.errors import ConfigError, ContractError
from sluice.formats import masks
from sluice.formats.decode import decode
from sluice.formats.internal_columns import DETAIL, ERROR, FIELD
from sluice.ingest import quarantine

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("generated_code")]

ID = {"name": "id", "type": "string", "source": "$key"}
N = {"name": "n", "type": "int"}
SECRET = "0123456789abcdef-the-key"


def contract(*columns: dict[str, Any], **more: Any) -> Contract:
    body = {"table": "db.t", "topic": "t", "group": "g", "owner": "o", "columns": [ID, *columns]}
    return Contract.model_validate({**body, **more})


def decoded(spark: SparkSession, made: Contract, records: dict[str, Any], *, explain: bool = False) -> DataFrame:
    rows = [
        (1, 0, n, key.encode(), value if value is None or isinstance(value, bytes) else json.dumps(value).encode())
        for n, (key, value) in enumerate(records.items())
    ]
    names = "batch_seq bigint, _kafka_partition int, _kafka_offset bigint, key binary, value binary"
    staged = spark.createDataFrame(rows, names).withColumn("_kafka_timestamp", F.timestamp_seconds(F.lit(1)))
    return decode(staged.withColumn("headers", F.lit(None).cast("string")), made, "t", explain=explain)


def test_columns_are_computed_and_what_fails_is_an_error_of_its_record(spark: SparkSession) -> None:
    made = contract(
        N,
        {"name": "upper", "type": "string", "expression": "upper(carrier)"},
        {"name": "twice", "type": "int", "expression": "n * 2"},
        {"name": "number", "type": "long", "expression": "cast(carrier AS int)"},
        {"name": "more", "type": "double", "expression": "cast(carrier AS int) / n"},
        {"name": "at", "type": "timestamptz", "expression": "timestamp_micros(us)", "required": True},
        inputs=[
            {"name": "carrier", "type": "string"},
            {"name": "kind", "type": "string"},
            {"name": "us", "type": "long", "source": "sent.us"},
        ],
        where="kind IS NULL OR kind = 'mine'",
    )
    sent = {"us": 1_700_000_000_123_456}
    rows = decoded(
        spark,
        made,
        {
            "good": {"n": 2, "carrier": "7", "sent": sent, "kind": "mine"},
            "no number": {"n": 2, "carrier": "'; DROP TABLE t; --", "sent": sent},
            "overflow": {"n": 2_000_000_000, "carrier": "7", "sent": sent},
            "by zero": {"n": 0, "carrier": "7", "sent": sent},
            "nulls": {"sent": sent},
            "lacking": {"n": 1, "carrier": "7"},
            "not mine": {"n": 0, "carrier": "x", "kind": "other"},
            "unreadable": {"n": "x", "kind": "other"},
            "broken": b"{",
            "nothing": None,
        },
    )
    found = {r["id"]: (r["_sluice_op"], r["_sluice_error"], r["_sluice_field"]) for r in rows.collect()}
    assert {key: each for key, each in found.items() if each[1] or each[0] == "i"} == {
        "no number": ("u", "expression", "number"),
        "overflow": ("u", "expression", "twice"),
        "by zero": ("u", "expression", "more"),
        "lacking": ("u", "misfit", "at"),
        "not mine": ("i", None, None),
        "unreadable": ("u", "malformed", None),  # the quarantine looks for the field by itself
        "broken": ("u", "malformed", None),
        "nothing": ("u", "null_value", None),
    }
    good = rows.where("id = 'good'").select("upper", "twice", "number", "more", F.unix_micros("at")).collect()[0]
    assert tuple(good) == ("7", 4, 7, 3.5, sent["us"])
    assert set(rows.columns) & {"carrier", "kind", "us"} == set(), "inputs are no columns"


def test_an_error_names_the_part_of_the_expression_that_failed(spark: SparkSession) -> None:
    made = contract(
        {"name": "x", "type": "long", "expression": "coalesce(abs(cast(trim(s) AS int)), 0) + 100 / n"},
        inputs=[{"name": "s", "type": "string"}, {"name": "n", "type": "int"}],
        where="8 % n < 5 OR n IS NULL",
    )
    sent = {
        "cast(trim(s) AS int)": {"s": "secret", "n": 1},
        "8 % n": {"s": "1", "n": 0},
        "the result of the expression cannot become a long without loss": {"s": "1", "n": 3},
        "": {"s": "1", "n": 2},
    }
    plain = decoded(spark, made, sent)
    assert {r[DETAIL] for r in plain.collect()} == {"the expression failed on this record", None}
    found = {r["id"]: r[DETAIL] for r in decoded(spark, made, sent, explain=True).collect()}
    assert found.pop("") is None
    assert found == {
        part: part if part.startswith("the") else f"the expression failed on this record in {part}" for part in found
    }


def test_a_text_that_a_regex_would_fill_the_stack_with_is_an_error_of_its_record(spark: SparkSession) -> None:
    """Spark takes a full stack for fatal: one such record ended the application, and each one after it."""
    options = spark.sparkContext.getConf().get("spark.executor.defaultJavaOptions")
    assert jvm.THREAD_STACK_SIZE in str(options), "tasks run in executors, too"
    names = "^((([a-z]|[0-9])+)[.])*[a-z]+$"
    taken = f"regexp_extract(t, '{names}', 0)"
    inner = "regexp_replace(regexp_replace(e.s, '(a|[.])+', 'c'), '^(b|c)+$', '')"
    made = contract(
        {"name": "s", "type": "string"},
        {"name": "ok", "type": "boolean", "expression": f"s rlike '{names}'"},
        {"name": "parts", "type": "int", "expression": r"size(split(x.s, '(?:[.]|;)+'))"},
        {"name": "first", "type": "string", "expression": f"CASE WHEN length(t) < 9 THEN {taken} ELSE left(t, 1) END"},
        {"name": "each", "type": "list<boolean>", "expression": f"transform(x.l, e -> e.s rlike '{names}')"},
        {"name": "ends", "type": "int", "expression": f"size(filter(x.l, (e, i) -> {inner} = ''))"},
        {"name": "by", "type": "boolean", "expression": "regexp_like(s, x.regex)"},
        {"name": "map", "type": "int", "expression": r"size(str_to_map(s, ';', '(?:[.]|:)+'))"},
        inputs=[
            {"name": "x", "type": "struct<s: string, regex: string, l: list<struct<s: string>>>"},
            {"name": "t", "type": "string"},
        ],
        where=f"s IS NULL OR coalesce(regexp_extract(s, '{names}', 2), 'b') <> ''",
    )
    long, most = "a." * 500_000 + "b", "a." * 8_191 + "b"
    records = {
        "short": {"s": "a.b", "t": "a.b", "x": {"s": "a;b", "regex": "(a)", "l": [{"s": "a.b"}, {"s": "."}, {}]}},
        "most": {"s": most, "t": long, "x": {"s": most, "regex": "^(a|b|[.])*$", "l": [{"s": most}]}},
        "long": {"s": long},
        "long within": {"s": "a.b", "x": {"s": long}},
        "long in a list": {"s": "a.b", "x": {"l": [{"s": "a"}, {"s": long}]}},
        "null": {},
    }
    columns = ("ok", "parts", "first", "each", "ends", "by")
    rows = decoded(spark, made, records).select("id", *columns, ERROR, FIELD).collect()
    found = {row[0]: tuple(row[1:]) for row in rows}
    assert found["long"][-2:] == ("expression", "where")
    assert found["long within"][-2:] == ("expression", "parts")
    assert found["long in a list"][-2:] == ("expression", "each")
    assert found["short"] == (True, 2, "a.b", [True, False, None], 2, True, None, None)
    assert found["most"] == (True, 8_192, "a", [True], 1, True, None, None), "of a branch that is not taken nothing is"
    assert found["null"][-2:] == (None, None)
    plain = contract({"name": "s", "type": "string"}, {"name": "ok", "type": "boolean", "expression": "s rlike 'b$'"})
    assert decoded(spark, plain, {"long": {"s": long}}).select("ok").collect()[0].ok, "what takes no stack takes all"


def test_when_a_version_ends_is_not_known_to_its_record(spark: SparkSession) -> None:
    until = {"name": "until", "type": "timestamptz", "source": "$valid_to"}
    current = {"name": "current", "type": "boolean", "expression": "until IS NULL"}
    made = contract(N, until, current, mode="history", identifier=["id"], deletes="ignore")
    with pytest.raises(ContractError, match="until"):
        decoded(spark, made, {"a": {"n": 1}})


REFUSED = {
    "rand()": "not deterministic",
    "uuid()": "not deterministic",
    "input_file_name()": "not deterministic",
    "now()": "time of the run",
    "current_date": "time of the run",
    "localtimestamp()": "time of the run",
    "unix_timestamp()": "time of the run",
    "unix_timestamp(timestamp'now')": "time of the run",
    "unix_date(DATE /* of */ 'today')": "time of the run",
    "unix_timestamp(cast('now' AS timestamp))": "time of the run",
    "unix_timestamp(to_timestamp('now'))": "time of the run",
    "unix_date(to_date('today'))": "time of the run",
    "if(_kafka_timestamp < 'now', 1, 0)": "time of the run",
    "unix_timestamp(timestamp'12:30')": "time of the run",
    "if(_kafka_timestamp < '12:30', 1, 0)": "time of the run",
    "hour(id)": "implicitly casts a text to a timestamp",
    "unix_timestamp(date_trunc('DAY', id))": "implicitly casts a text to a timestamp",
    "length(base64(aes_encrypt('a', '0000111122223333')))": "random number",
    "session_user()": "who runs it",
    "version()": "where it runs",
    "java_method('java.lang.System', 'exit', '1')": "call into Java",
    "TRY_REFLECT('java.lang.System', 'exit', '1')": "call into Java",
    "lake.system.bucket(4, n)": "function of a catalog",
    "max(n)": "aggregate",
    "row_number() OVER (ORDER BY n)": "function of one record",
    "explode(array(n))": "several rows|function of one record",
    "(SELECT 1)": "subquery",
    "n IN (SELECT 1)": "subquery",
    "value": "value",
    "batch_seq": "batch_seq",
    "twice": "twice",
    "nope(n)": "nope",
    "n; DROP TABLE t": "SYNTAX",
    "n) OR (1 = 1": "SYNTAX",
    "*": "more than one value",
    "array(n)": "CAST",
    "size(cast(parse_json(id) AS array<timestamp>))": "casts texts within another type to timestamps",
    "size(cast(cast(parse_json(id) AS array<variant>) AS array<timestamp>))": "casts texts within another type to",
    "parse_json(id)": "contains variant that would become bigint: cast it",
    "variant_get(parse_json(id), '$.n')": "contains variant that would become bigint: cast it",
}
# What Spark's casts guess, or make nothing of.
CAST = {
    "number": ("decimal(9, 2)", "d", {"1.25": "1.25", '"NaN"': None, "1e400": None, "1e9": None}),
    "inside": ("list<decimal(9, 2)>", "array(cast(d AS decimal(9, 2)))", {"1.25": ["1.25"]}),
    "text": ("string", "cast(b AS string)", {'"YQ=="': "a", '"/w=="': None}),
    "texts": ("list<string>", "array(cast(b AS string))", {'"YQ=="': ["a"], '"/w=="': None}),
    "float": ("float", "d", {"1.25": "1.25", '"NaN"': "nan", '"-Infinity"': "-inf", "1e300": None}),
    "day": ("date", "s", {'"2024-01-31"': "2024-01-31", '"2024-01-31T23:00-05"': None, '"2024-01-31 x"': None}),
    "local": ("timestamp", "s", {'"2024-01-31T10:00:00.5"': True, '"2024-01-31 10:00+02:00"': None}),
    "moment": ("timestamptz", "s", {'"2024-01-31"': True, '"12:30"': None, '"T7:5"': None}),
    "cast": ("timestamptz", "cast(s AS timestamp)", {'"2024-01-31"': True, '"12:30"': None, '" 1:2"': None}),
    "hour": ("int", "hour(to_timestamp(s))", {'"2024-01-31T10:00"': 10, '"12:30"': None}),
    "last day": ("date", "date_add(DATE'9999-12-31', cast(d AS int))", {"0": "9999-12-31", "1": None}),
    "first": ("timestamp", "TIMESTAMP_NTZ'0001-01-01 00:00:00' - make_dt_interval(0, 0, 0, d)", {"0": True, "1": None}),
    "late": ("list<timestamptz>", "array(timestamp_millis(cast(d AS long)))", {"1e12": True, "1.7e15": None}),
    "tried": ("int", "coalesce(hour(try_to_timestamp(s)), -1)", {'"2024-01-31T10:00"': 10, '"12:30"': -1}),
}


@pytest.mark.parametrize("name", CAST)
def test_what_a_cast_guesses_or_drops_is_an_error_of_its_record(spark: SparkSession, name: str) -> None:
    kind, expression, values = CAST[name]
    inputs = [{"name": n, "type": t} for n, t in {"d": "double", "b": "binary", "s": "string"}.items()]
    made = contract({"name": "x", "type": kind, "expression": expression}, inputs=inputs)
    source = {"double": "d", "binary": "b", "string": "s"}
    field = next(source[i["type"]] for i in inputs if re.search(rf"\b{i['name']}\b", expression))
    records = {f"k{n}": f'{{"{field}": {value}}}'.encode() for n, value in enumerate(values)}
    rows = decoded(spark, made, records).orderBy("_kafka_offset").collect()
    for row, (value, expected) in zip(rows, values.items(), strict=True):
        if expected is None:
            assert (row[ERROR], row[FIELD], row["x"]) == ("expression", "x", None), value
        else:
            found = [str(each) for each in row["x"]] if isinstance(row["x"], list) else row["x"]
            assert row[ERROR] is None, value
            assert expected is True or found == expected or str(found) == expected, value


def test_what_is_no_plain_function_of_a_record_is_refused(spark: SparkSession) -> None:
    taken = []
    for text, why in REFUSED.items():
        twice = {"name": "twice", "type": "long", "expression": "n + n"}
        columns = [{"name": "x", "type": "long", "expression": text}, twice]
        try:
            decoded(spark, contract(N, *columns), {})
            taken.append((text, "was taken"))
        except ContractError as error:
            if not re.search(why, str(error)) or "db.t" not in str(error):
                taken.append((text, str(error)))
    assert taken == []
    # What is the same for a record whenever it is read.
    for text in (
        "unix_timestamp(timestamp'2024-01-31 00:00:00')",
        "unix_timestamp(cast('2024-01-31' AS timestamp))",
        "length(concat('now', 'today'))",
        "length(base64(aes_encrypt('a', '0000111122223333', 'ECB')))",
    ):
        decoded(spark, contract(N, {"name": "x", "type": "long", "expression": text}), {})
    for have, want in (("double", "decimal(9, 2)"), ("string", "timestamptz"), ("string", "date")):
        column = {"name": "x", "type": f"list<{want}>", "expression": "l"}
        with pytest.raises(ContractError, match="inside another type: cast it"):
            decoded(spark, contract(column, inputs=[{"name": "l", "type": f"list<{have}>"}]), {})
    with pytest.raises(ContractError, match="time of the run"):
        decoded(spark, contract(N, {"name": "x", "type": "timestamptz", "expression": "'now'"}), {})
    with pytest.raises(ContractError, match="where is not accepted: it is int, not a condition"):
        decoded(spark, contract(N, where="n + 1"), {})


def test_masked_columns_hold_no_personal_data_and_no_plan_shows_the_key(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = {"name": "mail", "type": "string", "mask": "sha256"}
    made = contract(mail, {"name": "name", "type": "string", "mask": "redact", "required": True})
    records = {"a": {"mail": "ü@example.org", "name": "Ada"}, "b": {"name": "Bo"}, "c": {"mail": "x"}}
    monkeypatch.delenv(masks.KEY_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=masks.KEY_VARIABLE):
        decoded(spark, made, records)
    monkeypatch.setenv(masks.KEY_VARIABLE, SECRET)
    rows = decoded(spark, made, records)
    found = {r["id"]: (r["mail"], r["name"], r["_sluice_error"]) for r in rows.collect()}
    expected = hmac.new(SECRET.encode(), "ü@example.org".encode(), "sha256").hexdigest()
    assert found["a"] == (expected, "[redacted]", None)
    assert found["b"] == (None, "[redacted]", None)
    assert found["c"][2] == "misfit", "what is required is looked at before it is hidden"
    plan = rows._jdf.queryExecution().toString().lower()
    pads = [bytes(pad[:8]) for pad in masks.hmac_pads(made)]
    assert not any(text in plan for text in (SECRET, SECRET.encode().hex(), *(p.hex() for p in pads)))


def test_a_record_is_read_once_whatever_is_asked_of_it(spark: SparkSession) -> None:
    # Without integers, for which the plan has a second parse of the records that the first could not read.
    n = {"name": "n", "type": "string"}
    made = contract(n, {"name": "text", "type": "string", "required": True})
    rows = decoded(spark, made, {"good": {"n": "1", "text": "x"}, "bad": b"{", "misfit": {"n": "1"}})

    def readings(frame: DataFrame) -> int:
        return frame._jdf.queryExecution().optimizedPlan().toString().count("from_json(")

    rejected = quarantine.rejected_rows(rows, made)
    assert readings(rejected) == 1
    assert {r["error_class"] for r in rejected.collect()} == {"malformed", "misfit"}
    assert readings(rows.where(F.col(ERROR).isNotNull())) > 1, "Spark knows better now: a plain filter would do"
