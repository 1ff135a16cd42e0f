"""The prefix of namespaces, by which two Sluices share a catalog."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.contract import folder as contract_folder
from sluice.contract import values
from sluice.embedded.home import REPOSITORY
from sluice.errors import ContractError

pytestmark = pytest.mark.unit

LOAD = """
import json, sys
from pathlib import Path
from sluice.contract.folder import load_contracts
from sluice.iceberg import table_names
found = load_contracts(Path(sys.argv[1]), strict=False)
(contract,) = found.tables.values()
own = [table_names.staging("orders"), table_names.quarantine(contract), table_names.deletes(contract)]
own += [each for name, each in vars(table_names).items() if name.isupper() and isinstance(each, tuple)]
print(json.dumps({
    "typed": table_names.typed(contract), "group": contract.group, "own": sorted({each[0] for each in own}),
    "topics": {name: each.tables for name, each in found.topics.items()}, "templates": list(found.templates),
    "problems": [each.message for each in found.problems],
}))
"""
BODY = "topic: orders\nowner: tests\ncolumns: [{name: id, type: long}]\n"


def test_all_namespaces_have_it_and_groups_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"table: shop.eu.orders\n{BODY}")
    (tmp_path / "b.yaml").write_text(f"table: sluice_staging.orders\n{BODY}")
    (tmp_path / "c.yaml").write_text("table: 'raw.{topic}'\n" + BODY.replace("orders", "{pattern: 'raw[.].*'}"))
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "include"), values.PREFIX_VARIABLE: "dev_"}
    command = [sys.executable, "-c", LOAD, str(tmp_path)]
    found = json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    (problem,) = found.pop("problems")
    assert "namespace 'dev_sluice_staging' is reserved" in problem
    assert found == {
        "typed": ["dev_shop", "eu", "orders"],
        "group": "shop_eu",
        "own": ["dev_sluice", "dev_sluice_deletes", "dev_sluice_quarantine", "dev_sluice_staging"],
        "topics": {"orders": ["dev_shop.eu.orders"]},
        "templates": ["dev_raw.{topic}"],
    }


@pytest.mark.parametrize("prefix", ["Dev_", "a-b", "1a", "_a", "sluice_", "a.b", "a" * 41])
def test_another_prefix_stops_everything(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text(f"table: shop.orders\n{BODY}")
    monkeypatch.setattr(values, "NAMESPACE_PREFIX", prefix)
    with pytest.raises(ContractError, match=r"SLUICE_NAMESPACE_PREFIX=.* is not a prefix of namespaces"):
        contract_folder.load_contracts(tmp_path)
    assert contract_folder.load_contracts(tmp_path, strict=False).tables == {}
