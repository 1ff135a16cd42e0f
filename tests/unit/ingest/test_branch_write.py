"""A write that outlived the youngest age at which orphan files are removed never moves main."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from sluice.contract.settings import MIN_ORPHAN_AGE
from sluice.errors import FencedError
from sluice.ingest.branch_write import BranchWrite
from sluice.ingest.context import Context
from tests.unit.maintain.test_assess import append, batch, filled, promise

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("clock", ["monotonic", "time"])  # while a machine is suspended, the first one stands still
@pytest.mark.parametrize(("seconds", "moves"), [(-60, True), (0, False), (3600, False)])
def test_a_write_as_old_as_orphan_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int, moves: bool, clock: str
) -> None:
    (tmp_path / "warehouse").mkdir()
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"file://{tmp_path}/warehouse")
    typed, _ = filled(catalog, promise(tmp_path), 1)
    context = Context(None, catalog, "lake", {}, "late")  # type: ignore[arg-type]
    with BranchWrite(context, ("shop", "orders"), batch(2)) as write:
        append(catalog.load_table("shop.orders"), 2, {"sluice.step": "publish", **batch(2).properties()}, write.branch)
        now = getattr(time, clock)() + MIN_ORPHAN_AGE.total_seconds() + seconds
        monkeypatch.setattr(time, clock, lambda: now)
        if moves:
            head = write.fast_forward_main().snapshot_id
        else:
            head = typed.metadata.current_snapshot_id
            with pytest.raises(FencedError, match=r"orphan clean-up may have removed.*shop\.orders.*next run writes"):
                write.fast_forward_main()
    metadata = catalog.load_table("shop.orders").metadata
    assert metadata.current_snapshot_id == head
    assert write.branch not in metadata.refs
