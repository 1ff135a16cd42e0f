"""Finds commits of other engines in a typed table since Sluice's last one. In: the table. Out: a text, or an error."""

from __future__ import annotations

from itertools import takewhile

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.batch import PUBLISHED_THROUGH
from sluice.contract.contract import Contract
from sluice.errors import OtherWriterError
from sluice.iceberg import snapshots
from sluice.iceberg.cursor import ADOPTED

MAX_NAMED = 3
_ENGINE = ("engine-name", "flink.job-id", "kafka.connect.commit-id", "spark.app.id", "app-id")
"""Summary properties by which engines name themselves, in the order in which one is chosen."""


def describe_commits(table: Table, contract: Contract) -> str:
    """Name the commits that changed rows since Sluice's last one; empty if there are none, or the contract allows them.

    Deletes and updates by hand are among them; maintenance is not, because it changes no row.
    """
    if contract.other_writers == "allow":
        return ""
    found = _commits(table)
    texts = []
    for each in found[:MAX_NAMED]:
        properties = snapshots.summary(each)
        engine = next((f"{name} {properties[name]}" for name in _ENGINE if name in properties), "no engine named")
        counts = ", ".join(f"{name} {n}" for name, n in snapshots.read_row_counts(properties).items() if n)
        texts.append(f"snapshot {each.snapshot_id} at {snapshots.committed_at(each).isoformat()} ({counts}; {engine})")
    more = f", and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return f"Another engine wrote to {contract.table}: {'; '.join(texts)}{more}." if found else ""


def check(table: Table, contract: Contract) -> str:
    """Describe the commits of other engines, or refuse them.

    Raises:
        OtherWriterError: there are some, and the contract has `other_writers: stop`; or the table was adopted, and one
            has added rows: they may be of the same records, which mode append would add once more.
    """
    text = describe_commits(table, contract)
    if text and contract.other_writers == "stop":
        raise OtherWriterError(text, table=contract.table)
    if (
        text
        and ADOPTED in table.properties
        and not contract.keyed
        and any(int(snapshots.summary(each).get("added-records", "0")) for each in _commits(table))
    ):
        raise OtherWriterError(
            f"{text} The table was adopted: these rows may be of records that Sluice would add once more.",
            table=contract.table,
            next_step="If the previous writer continues the table, remove the contract. If not, roll the table back to "
            "Sluice's last snapshot. If another engine adds other rows, set other_writers: allow.",
        )
    return text


def _commits(table: Table) -> list[Snapshot]:
    """Commits of other engines that changed rows since Sluice's last one, newest first."""
    since = takewhile(lambda s: PUBLISHED_THROUGH not in snapshots.summary(s), snapshots.ancestors(table.metadata))
    return [s for s in since if snapshots.is_of_other_writer(s) and snapshots.changed_rows(s)]
