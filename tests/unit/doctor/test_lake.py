"""What the check of the catalog reports, without a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.doctor import lake
from sluice.errors import ConfigError
from sluice.iceberg import catalog

pytestmark = pytest.mark.unit


def test_a_sqlite_file_that_may_only_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/c.db")
    catalog.load().close()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///file:{tmp_path}/c.db?mode=ro&uri=true")
    with pytest.raises(ConfigError, match=f"SQLite file {tmp_path}/c.db cannot be opened"):
        lake.check_catalog(30)
