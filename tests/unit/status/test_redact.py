"""Names of tables that a user may not see are removed from the texts of others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sluice.errors import FolderSharedError, SluiceError, TableDamagedError
from sluice.ledger.maintenance_table import KnownFolders
from sluice.maintain.orphan_guard import check_other_tables
from sluice.maintain.table_locations import TableFolders
from sluice.status.events import Event, Lane
from sluice.status.model import LastError, Status, TableStatus, TopicStatus
from sluice.status.redact import hide_names, redact_events, redact_maintenance

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 22, 6, 0, tzinfo=UTC)
NAMES = frozenset({"hr.pay", "hr.pay.items"})


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ("latest for hr.pay, earliest for db.t.", "latest for another table, earliest for db.t."),
        ("for hr.pay. [table hr.pay, batch 1]", "for another table. [table another table, batch 1]"),
        ("No such table: 'hr.pay'", "No such table: 'another table'"),
        # Others begin, or end, like it.
        ("hr.pay_eu, hr.pay.eu, eu.hr.pay, my-hr.pay, hr.pay-eu", None),
        ("hr.pay.items and hr.pay", "another table and another table"),
        ("Topic 'hr.pay', for hr.pay [topic hr.pay]", "Topic 'hr.pay', for another table [topic hr.pay]"),
    ],
)  # fmt: skip
def test_a_name_is_taken_out_as_a_whole(told: str, left: str | None) -> None:
    assert hide_names(told, NAMES) == (left or told)
    assert hide_names(told, frozenset()) == told


def test_whose_files_lie_in_a_folder_is_not_told_of_any_table() -> None:
    where = TableFolders({"db.t": ("s3://lake/db/t",), "any thing.else": ("s3://lake/db/t/x y/else",)})
    lost = TableFolders({}, unreadable={"foreign.table": None, "hr.pay": KnownFolders((), NOW)})
    for found, name in ((where, FolderSharedError), (lost, TableDamagedError)):
        with pytest.raises(name) as raised:
            check_other_tables("db.t", "s3://lake/db/t", found)
        told = f"failed, 1.5 s, {name.__name__}: {str(raised.value)[:500]}"
        assert redact_maintenance(told, None) == told
        # A contract that can't be read has names that nobody knows.
        assert "lake" not in redact_maintenance(told, frozenset())
        left = redact_maintenance(told, NAMES)
        assert left.startswith(
            f"failed, 1.5 s, {name.__name__}: The table's folder holds, or may hold, files of other tables"
        )
        assert not [word for word in ("any", "else", "foreign", "hr.pay", "lake") if word in left]
    own = "FolderSharedError: Another table, 5e1f, writes to this table's folder, and this catalog does not know it: s3://l/t"
    assert redact_maintenance(own, NAMES) == own
    gone = "TableDamagedError: The metadata of db.t is gone: s3://lake/db/t/metadata/1.json"
    assert redact_maintenance(gone, NAMES) == gone


def test_a_topic_may_be_called_as_a_table_that_its_reader_may_not_see() -> None:
    refused = LastError(NOW, "failed", "hr.pay", 3, "hr.pay, batch 3; hr.pay.items", "run", open=True)
    mine = TableStatus("db.t", "mine", "append", "me", topics=[TopicStatus("hr.pay")], last_error=refused)
    others = [TableStatus(name, "hr", "append", "hr") for name in NAMES]
    seen = Status(NOW, [mine, *others]).filter_groups(lambda group: group == "mine")
    assert seen.hidden_tables == NAMES and [t.table for t in seen.tables] == ["db.t"]
    assert seen.tables[0].last_error and seen.tables[0].last_error.error == "hr.pay, batch 3; another table"
    event = Event(NOW, Lane.PUBLISHED, "published, hr.pay, batch 3; hr.pay.items", "db.t", "hr.pay")
    assert [e.told for e in redact_events([event], NAMES)] == ["published, hr.pay, batch 3; another table"]


@pytest.mark.parametrize(
    ("others", "unseen"),
    [
        ({}, None),
        ({"tables": [TableStatus("hr.pay", "hr", "append", "hr")]}, frozenset({"hr.pay"})),
        ({"stopped": [("hr", SluiceError("two topics make hr.pay"))]}, frozenset()),
        ({"broken": ["hr.yaml: no such field"]}, frozenset()),
    ],
)
def test_who_may_see_all_is_told_all(others: dict[str, Any], unseen: frozenset[str] | None) -> None:
    mine = TableStatus("db.t", "mine", "append", "me")
    told = {**others, "tables": [mine, *others.get("tables", ())]}
    assert Status(NOW, **told).filter_groups(lambda group: group == "mine").hidden_tables == unseen
