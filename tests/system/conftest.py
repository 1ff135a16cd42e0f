"""What tests on a real broker and catalog share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.embedded.broker import Broker
from sluice.iceberg import catalog as catalogs
from tests.support.site import Site


@pytest.fixture
def site(tmp_path: Path, broker: Broker, sluice_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "contracts"
    folder.mkdir()
    monkeypatch.setenv("SLUICE_CONTRACTS", str(folder))
    catalog = catalogs.load()
    yield Site(folder, broker.bootstrap, catalog)
    catalog.close()
