"""Fixtures for tests on a real broker and catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.embedded.kafka_broker import EmbeddedBroker
from sluice.iceberg import catalog as catalogs
from tests.support.light_lake import LightLake


@pytest.fixture
def light_lake(
    tmp_path: Path, broker: EmbeddedBroker, sluice_env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[LightLake]:
    folder = tmp_path / "contracts"
    folder.mkdir()
    monkeypatch.setenv("SLUICE_CONTRACTS", str(folder))
    catalog = catalogs.load()
    yield LightLake(folder, broker.bootstrap, catalog)
    catalog.close()
