"""The price file: amounts, and errors that name file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.usage import prices

pytestmark = pytest.mark.unit
VALID = """
currency: EUR
per_cpu_hour: 0.36
per_gb_month: 0.02
per_1000_requests:
  put: 0.005
  catalog: 0.001
"""


def load(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> prices.Prices | None:
    file = folder / "prices.yaml"
    file.write_text(text)
    monkeypatch.setenv("SLUICE_PRICES", str(file))
    return prices.load_prices()


def test_work_and_storage_have_a_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load(VALID, tmp_path, monkeypatch)
    assert found
    assert found.work(10_000, 2_000, 3_000) == pytest.approx(1.0 + 0.01 + 0.003)
    assert found.storage_month(5 * prices.GB) == pytest.approx(0.1)
    assert [found.text(amount) for amount in (1234.5, 0.0123, 0.000012)] == [
        "1,234.50 EUR", "0.0123 EUR", "0.000012 EUR",
    ]  # fmt: skip


def test_without_a_file_there_are_no_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_PRICES", raising=False)
    assert prices.load_prices() is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("currency: EUR\n", "per_cpu_hour: is required"),
        ("currency: EUR\nper_cpu_hour: cheap\n", "prices.yaml:2: per_cpu_hour"),
        ("currency: EUR\nper_cpu_hour: -1\n", "greater than or equal to 0"),
        ("currency: EUR\nper_cpu_hour: 1\ncross_zone_gb: 1\n", "prices.yaml:3: cross_zone_gb: unknown field"),
        ("currency: EUR\nper_cpu_hour: 1\nper_1000_requests: {get: 1}\n", "per_1000_requests.get: unknown field"),
        ("a: [", "prices.yaml"),
    ],
)
def test_an_invalid_file_is_refused(text: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as error:
        load(text, tmp_path, monkeypatch)
    assert part in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_PRICES", str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read"):
        prices.load_prices()
