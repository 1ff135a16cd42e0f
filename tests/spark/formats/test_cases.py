"""Records that users sent: each folder of tests/data/cases has a contract, records, and what they become.

`expected.json` has `records`, in the order of records.jsonl (`row`, `deleted`, or `rejected` with the error class and
`field`), or `refused`, words of the refusal of a contract or a schema. `schemas.json` has the registry's schemas by id,
each with its `subject`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.cli.contract import sample_test
from sluice.contract.folder import load_contracts
from sluice.errors import SluiceError
from sluice.evolve.auto_columns import resolve_columns
from tests.support.services.registries import scripted_registry

pytestmark = pytest.mark.spark

CASES = Path(__file__).parents[2] / "data" / "cases"


@pytest.mark.parametrize("case", sorted(each.name for each in CASES.iterdir()))
def test_what_users_sent(spark: SparkSession, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CASES / case
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    schemas = folder / "schemas.json"
    with scripted_registry() as registry:
        for number, each in json.loads(schemas.read_text("utf-8") if schemas.exists() else "{}").items():
            text = each["schema"] if isinstance(each["schema"], str) else json.dumps(each["schema"])
            found = {**each, "id": int(number), "schema": text, "version": 1}
            registry.schemas[int(number)] = registry.subjects[each["subject"]] = found
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", registry.url)
        monkeypatch.setenv("SLUICE_SCHEMAS", str(tmp_path / "schemas"))
        if "refused" in expected:
            with pytest.raises(SluiceError, match=re.escape(expected["refused"])):
                become(spark, folder)
        else:
            assert become(spark, folder) == expected["records"]


def become(spark: SparkSession, folder: Path) -> list[dict[str, Any]]:
    """What the decoder makes of the records, as `expected.json` has it."""
    (contract,) = load_contracts(folder).tables.values()
    sample = sample_test.read_file(folder / "records.jsonl")
    results, _ = sample_test.evaluate_sample(resolve_columns(contract), contract.topics[0], sample, spark)
    return [
        {"rejected": each.error, "field": each.field} if each.error else {each.outcome: json.loads(each.row)}
        for each in results
    ]
