"""Finds commits of other engines in a typed table since Sluice's last one. In: the table. Out: a text, or an error."""

from __future__ import annotations

from itertools import takewhile

from pyiceberg.table import Table

from sluice.batch import PUBLISHED_THROUGH
from sluice.contract.contract import Contract
from sluice.errors import OtherWriterError
from sluice.iceberg import snapshots

MAX_NAMED = 3
_ENGINE = ("engine-name", "flink.job-id", "kafka.connect.commit-id", "spark.app.id", "app-id")
"""Summary properties by which engines name themselves, in the order in which one is chosen."""


def describe_commits(table: Table, contract: Contract) -> str:
    """Name the commits that changed rows since Sluice's last one; empty if there are none, or the contract allows them.

    Deletes and updates by hand are among them; maintenance is not, because it changes no row.
    """
    if contract.other_writers == "allow":
        return ""
    since = takewhile(lambda s: PUBLISHED_THROUGH not in snapshots.summary(s), snapshots.ancestors(table.metadata))
    found = [s for s in since if snapshots.is_of_other_writer(s) and snapshots.changed_rows(s)]
    texts = []
    for each in found[:MAX_NAMED]:
        properties = snapshots.summary(each)
        engine = next((f"{name} {properties[name]}" for name in _ENGINE if name in properties), "no engine named")
        counts = ", ".join(f"{name} {n}" for name, n in snapshots.read_row_counts(properties).items() if n)
        texts.append(f"snapshot {each.snapshot_id} at {snapshots.committed_at(each).isoformat()} ({counts}; {engine})")
    more = f", and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return f"Another engine wrote to {contract.table}: {'; '.join(texts)}{more}." if found else ""


def check(table: Table, contract: Contract) -> str:
    """Describe the commits of other engines, or refuse them if the contract says so.

    Raises:
        OtherWriterError: the contract has `other_writers: stop`, and there are some.
    """
    text = describe_commits(table, contract)
    if text and contract.other_writers == "stop":
        raise OtherWriterError(text, table=contract.table)
    return text
