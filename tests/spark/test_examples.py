"""Each README of examples/ prints the rows that its commands make: all examples as one group, in one run a step."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from pyspark.sql import SparkSession

from sluice.embedded.home import REPOSITORY
from sluice.embedded.schema_registry import EmbeddedRegistry
from sluice.iceberg import table_names
from tests.support.lake import Lake

pytestmark = pytest.mark.spark

FOLDER = REPOSITORY / "examples"
EXAMPLES = sorted(path.parent for path in FOLDER.glob("*/produce.py"))
Rows = list[list[str]]


@dataclass
class Step:
    """A step of an example: the arguments of its producer, and its queries with the table printed below each."""

    arguments: list[str]
    queries: list[tuple[str, Rows]] = field(default_factory=list)


def read_steps(example: Path) -> list[Step]:
    """Read the steps of a README; set the variables that it exports; fail for a command that this can't run."""
    folder, steps, statement = f"examples/{example.name}", [], ""
    text = (example / "README.md").read_text("utf-8")
    for language, commands, table in re.findall(r"^```(\w*)\n([\s\S]*?)^```$|((?:^\|.*\n)+)", text, re.MULTILINE):
        for line in commands.splitlines() if not language else ():
            match shlex.split(line):
                case ["export", setting]:
                    os.environ.update([setting.split("=", 1)])
                case ["python", program, *arguments] if program == f"{folder}/produce.py":
                    steps.append(Step(arguments))
                case [setting, "sluice", "run", "examples"]:
                    assert (setting, steps[-1].queries) == (f"SLUICE_CONTRACTS={folder}", []), line
                case ["sluice", "sql", statement]:
                    pass
                case _:
                    pytest.fail(f"{folder}/README.md: this test does not know the command {line!r}")
        if table:
            heads, _, *rows = [[cell.strip() for cell in row[1:-1].split("|")] for row in table.splitlines()]
            steps[-1].queries.append((statement, [heads, *rows]))
    assert steps and all(step.queries for step in steps), folder
    assert text.count("\nsluice sql ") == sum(len(step.queries) for step in steps), "a table for each query"
    return steps


def query(spark: SparkSession, statement: str) -> Rows:
    """The result of a statement, as `sluice sql` prints it."""
    frame = spark.sql(statement)
    rows = frame.select(*(frame[name].cast("string") for name in frame.columns)).collect()
    return [frame.columns, *(["NULL" if value is None else value for value in row] for row in rows)]


def produce(example: Path, arguments: list[str], patch: pytest.MonkeyPatch) -> None:
    """Run a producer as `python produce.py …` does."""
    with patch.context() as within:
        within.setattr(sys, "argv", ["produce.py", *arguments])
        within.setattr(sys, "path", [str(example), *sys.path])
        runpy.run_path(str(example / "produce.py"), run_name="__main__")


def end_offsets(it: Lake) -> dict[str, int]:
    asked = it.admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest() for topic in it.contracts.topics})
    return {partition.topic: future.result().offset for partition, future in asked.items()}


def test_the_readmes_print_the_rows_that_their_commands_make(
    lake: Callable[..., Lake], registry: EmbeddedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = lake(group="examples")
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", it.bootstrap)
    monkeypatch.setenv("SLUICE_MASK_KEY", "")  # so that the value that a README exports is gone afterwards
    monkeypatch.setattr("sluice.kafka.registry.LATEST_TTL_S", 0)  # the plans of this test are those of many processes
    for path in FOLDER.glob("*/*.yaml"):
        shutil.copy(path, it.folder / f"{path.parent.name}-{path.name}")
    assert len(EXAMPLES) == 8
    assert list(it.contracts.groups) == ["examples"]
    steps = {example: read_steps(example) for example in EXAMPLES}
    session = it.spark.newSession()
    session.conf.set("spark.sql.defaultCatalog", table_names.catalog_name())
    different = []
    for number in range(max(map(len, steps.values()))):
        turn = {example: its[number] for example, its in steps.items() if number < len(its)}
        for example, step in turn.items():
            produce(example, step.arguments, monkeypatch)
        ends = end_offsets(it)
        for example, step in turn.items():
            produce(example, step.arguments, monkeypatch)
        assert end_offsets(it) == ends, "a second run of a producer sends nothing"
        outcomes = it.run()
        assert {outcome["state"] for outcome in outcomes.values()} <= {"published", "idle"}, outcomes
        assert it.preview_plan().has_work is False
        for example, step in turn.items():
            for statement, printed in step.queries:
                if (found := query(session, statement)) != printed:
                    different.append((example.name, statement, {"found": found, "printed": printed}))
    assert different == []
