"""A program: requests every path of the web plugin as a user who may read one of two DAGs.

Prints {path: [status, text]} as JSON. A process of its own, because Airflow reads its settings once, at import.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from sluice.contract import folder as contract_folder
from sluice.dag_ids import MAINTENANCE_DAGS
from sluice.errors import CatalogUnavailableError, SluiceError
from sluice.ledger import quality_table
from sluice.ledger.maintenance_table import ActionResult
from sluice.offsets import OffsetRange
from sluice.operate.dry_run import DryRun
from sluice.pages.cost import CostReading
from sluice.pages.detail import TableDetail
from sluice.pages.failed_runs import FailedRun
from sluice.pages.feed import Reading
from sluice.pages.history import History
from sluice.pages.quality import trends
from sluice.status import status
from sluice.status.activity import BatchEnd, TableActivity
from sluice.status.events import Event, Lane
from sluice.status.model import (
    AcceptedGap,
    ExpectationsSummary,
    LastError,
    MaintenanceStatus,
    PartitionStatus,
    SnapshotStatus,
    Status,
    TableStatus,
    TopicStatus,
)
from sluice.status.open_work import OpenBatch, SliceStatus
from sluice.status.readiness import ReadinessCheck
from sluice.status.record_trace import Coordinates, Place, RecordTrace
from sluice.usage.overview import CostFacts, DayFacts, StorageFacts
from sluice.usage.prices import Prices

NOW = datetime.now(UTC)
EVENT_AT = NOW - timedelta(minutes=10)
TABLE_NAMES = ("mine", "other")
READABLE = {"ingest_mine", "backfill", MAINTENANCE_DAGS[0]}
REFUSED_PATHS = (
    "/api/tables/db.mine/timeline?at=yesterday",
    "/api/tables/db.none",
    "/api/tables/db.mine/record?at=0:3&topic=other",
    *(f"/api/tables/db.mine/dry-run?dag={dag}" for dag in ("rollback", "ingest_mine")),
    *(f"/api/tables/db.mine/dry-run?form={form}" for form in ("[]", "{", "%7B%22table%22")),
)
HIDDEN_RUN_PATHS = (
    "/quality?run_id=r&dag_id=ingest_other",
    "/quality?run_id=unknown",
    f"/quality?run_id={'r' * 251}",
    "/quality?run_id=r%2F..%2Fr",
    "/quality?run_id=r%0A",
    f"/tables/db.mine/report?run_id={'r' * 251}",
    "/tables/db.mine/report?run_id=r%00",
)
UNRESTRICTED_PATHS = ("/metrics", "/tables/db.mine", "/api/timeline", "/tables/db.mine/report")
TIMEOUT_MESSAGE = "No answer for 9000 s."
PATHS_BY_FEED = {
    "status": ("/api/tables", "/api/tables/db.mine", "/metrics"),
    "details": ("/api/tables/db.mine/readiness",),
    "quality": ("/api/quality",),
    "groups": ("/metrics",),
}
MINUTES_AGO = {"/tables": 2, "/tables/db.mine": 5, "/quality": 6, "/tables/db.mine/timeline": 3, "/timeline": 2}
"""How many minutes ago the oldest of a page's data was read; the status is of now."""
CATALOG_ERROR = CatalogUnavailableError(
    "The Iceberg catalog did not answer: OSError: When reading 'lake/quality/data/table=db.other/0.parquet': SLOW_DOWN"
)
OFFSETS = {0: OffsetRange(3, 9)}
# Texts of each table that name the other table.
SHARED_TOPIC_MESSAGE = "Topic 't' is shared, and group is mine for db.mine, other for db.other."
SHARED_FOLDER_MESSAGE = (
    "FolderSharedError: Files of other tables lie in this table's folder: db.other in s3://l/db.other, hr.x in s3"
)
COST = CostReading(
    NOW,
    CostFacts(
        "db.mine",
        NOW,
        [DayFacts("2026-11-28", 3, 60, 7.5, {"application": 2.5, "publish": 5.0}, 900.0, 300.0, 4.0, 12.0, 0.75)],
        [StorageFacts("typed", "db.mine", 5000, 1000, 2, 0.5)],
        9,
        "EUR",
    ),
    Prices(currency="EUR", per_cpu_hour=360.0, per_gb_month=0.02),
)
TRACE = RecordTrace(
    "db.mine",
    Coordinates("t.mine", 0, 3),
    Place.BLOCKED,
    OFFSETS[0],
    3,
    NOW,
    "run",
    NOW,
    True,
    error=SHARED_TOPIC_MESSAGE,
)
FULL_STATUS: dict[str, Any] = {
    "snapshot": SnapshotStatus(7, NOW, 1.5, "t.mine", 2, OFFSETS, 6, "run", "publish"),
    "totals": {"records": 6, "delete files": 0},
    "quarantined": 3,
    "open_batches": [OpenBatch("t.mine", 3, "staged", OFFSETS)],
    "slices": [SliceStatus("t.mine", -1, "failed", OFFSETS, NOW, "run", "why", "branch")],
    "maintenance": [MaintenanceStatus("remove_orphan_files", NOW, "failed", f"failed, 1.5 s, {SHARED_FOLDER_MESSAGE}")],
    "problems": [SHARED_TOPIC_MESSAGE],
    "expectations": ExpectationsSummary("t.mine", 2, NOW, 3, 0, ["warn: x"]),
    "last_error": LastError(NOW, "blocked", "t.mine", 3, SHARED_TOPIC_MESSAGE, "run", open=True),
    "freshness_promised_seconds": 60.0,
}


def make_topic_status(name: str) -> TopicStatus:
    """Return a topic's status with a value in every field."""
    partitions, gaps = [PartitionStatus(0, 0, 9, 9, 12, 3)], [AcceptedGap(0, OFFSETS[0], NOW, "ann", "why")]
    return TopicStatus(name, "id", 2, 3, partitions, 3, 4.5, NOW, NOW, {0: 2}, gaps)


WAITED_FOR_READING: list[bool] = []
"""For each reading that the last request used: whether the request waited for a due one."""


def fixed_feed(value: Any, *, busy: bool = False, error: str | None = None, ago: int = 0) -> Any:
    """Return a feed with this reading, for any key: current, or being renewed (`busy`), or failed since (`error`).

    Args:
        ago: how many minutes ago it was read.
    """

    def get(*, wait: float = 0.0, until: float | None = None) -> Reading[Any]:
        WAITED_FOR_READING.append(until is not None)
        return Reading(value, busy=busy, error=error, at=NOW - timedelta(minutes=ago))

    feed = SimpleNamespace(get=get)
    return SimpleNamespace(get=feed.get, get_feed=lambda _: feed)


def get_and_check_waiting(client: TestClient, at: str) -> Any:
    """Send a request; assert that only the API and /metrics wait for due readings, as pages reload by themselves."""
    WAITED_FOR_READING.clear()
    answer = client.get(at)
    if at.startswith("/api/"):
        assert all(WAITED_FOR_READING), at
    else:
        assert any(WAITED_FOR_READING) == (at == "/metrics"), at  # whose user may read all DAGs
    return answer


def get_answer(client: TestClient, at: str) -> list[Any]:
    """Send a request; return status and text. A report that does not exist yet reloads by itself."""
    answer = client.get(at)
    assert ("refresh" in answer.headers) == at.endswith("/report"), at
    return [answer.status_code, answer.text]


def ask_as_unrestricted_user(client: TestClient, filled: SimpleNamespace) -> dict[str, Any]:
    """Return the answers for a user who may read both DAGs, with valid contracts and no reports."""
    was, filled.reports = filled.status, fixed_feed("")
    filled.status = fixed_feed(replace(was.get().value, broken=[]))
    READABLE.add("ingest_other")
    found = {at: get_answer(client, at) for at in UNRESTRICTED_PATHS}
    READABLE.remove("ingest_other")
    filled.status = was
    return found


def ask_for_hidden_runs(client: TestClient, filled: SimpleNamespace) -> dict[str, Any]:
    """What is answered to who asks for a run of a DAG that he may not read; nothing is read of it."""
    was, filled.runs = filled.runs, None
    found = {f"hidden run: {at}": get_answer(client, at) for at in HIDDEN_RUN_PATHS}
    filled.runs = was
    return found


def ask_for_chosen_tables(client: TestClient) -> dict[str, Any]:
    """Return the page of all tables for all of its choices, and for values that no page offers."""
    chosen = "q=T.&state=blocked&dag_id=ingest_mine&sort=lag&order=asc&by=group"
    nonsense = urlencode(dict.fromkeys(("q", "state", "show", "sort", "order", "by"), "<script>x"))
    pages = {"chosen": chosen, "none": nonsense}
    return {f"{name}: /tables": get_answer(client, f"/tables?{query}") for name, query in pages.items()}


def ask_with_failed_feeds(client: TestClient, filled: SimpleNamespace) -> dict[str, Any]:
    """Return the answers with earlier readings, while the next reading does not finish."""
    found: dict[str, Any] = {}
    for name in ("status", "details", "quality", "groups"):
        was = getattr(filled, name).get().value
        setattr(filled, name, fixed_feed(was, error=TIMEOUT_MESSAGE))
        found |= {f"{name} hangs: {at}": get_answer(client, at) for at in PATHS_BY_FEED[name]}
        setattr(filled, name, fixed_feed(was))
    return found


def main() -> None:
    """Fill the readings, send the requests and print the answers."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins"))
    import sluice_plugin as plugin
    from sluice_web import operations, reading

    tables = [
        TableStatus(f"db.{n}", n, "append", "me", exists=True, topics=[make_topic_status(f"t.{n}")], **FULL_STATUS)
        for n in TABLE_NAMES
    ]
    events = [Event(EVENT_AT, Lane.PUBLISHED, f"published {n}", f"db.{n}", f"t.{n}") for n in TABLE_NAMES]
    events += [
        Event(EVENT_AT, Lane.MAINTENANCE, f"failed, {SHARED_FOLDER_MESSAGE}", f"db.{n}", bad=True) for n in TABLE_NAMES
    ]
    events += [Event(EVENT_AT, Lane.STAGED, f"staged {n}", None, f"t.{n}") for n in TABLE_NAMES]
    # Also runs of DAGs that belong to no group; the user may read one of them.
    runs = {
        dag: FailedRun(dag, "r", NOW, NOW, "plan", 2)
        for dag in (*READABLE, "ingest_other", "rollback", *MAINTENANCE_DAGS)
    }
    runs["backfill"] = runs["backfill"]._replace(tables=["db.mine"])
    named = {f"db.{n}": f"t.{n}" for n in (*TABLE_NAMES, "mine_too")}
    tables.append(replace(tables[0], table="db.mine_too"))
    judged = {
        n: quality_table.ExpectationResult(n, topic, 1, "expect_x", "id", "warn", True, 1) for n, topic in named.items()
    }
    stopped = [(n, SluiceError(f"two topics make db.{n}")) for n in TABLE_NAMES]
    whole = Status(NOW, tables, [CATALOG_ERROR], stopped=stopped, broken=["db.other.yaml:3: modee: unknown field"])
    # At the second reading the catalog did not answer for one table.
    unasked = TableStatus("db.mine_too", "mine", "append", "me", unasked=["catalog"])
    reading.feeds = lambda: SimpleNamespace(status=SimpleNamespace(last=whole))
    reading.get_connection = lambda _: None
    contract_folder.load_contracts = lambda **_: SimpleNamespace(groups={})
    status.read_status = lambda *_, **__: replace(whole, stopped=[*stopped], tables=[*tables[:2], unasked])
    reading.find_missing_pools = lambda _: [(n, SluiceError(f"no pool for db.{n}")) for n in TABLE_NAMES]
    filled = SimpleNamespace(
        status=fixed_feed(reading._read_status()),
        details=fixed_feed(
            TableDetail(
                readiness=[ReadinessCheck("Owner", True, "me"), ReadinessCheck("Key", None, "?", "look")],
                effects=[ActionResult("db.mine", "remove_orphan_files", "failed", error=SHARED_FOLDER_MESSAGE, at=NOW)],
            ),
            ago=MINUTES_AGO["/tables/db.mine"],
        ),
        quality=fixed_feed({n: trends.group_results([r]) for n, r in judged.items()}, ago=MINUTES_AGO["/quality"]),
        runs=fixed_feed(
            {n: trends.group_results([r, replace(r, batch_seq=-1, expectation="expect_y")]) for n, r in judged.items()}
        ),
        histories=fixed_feed(
            History(NOW - timedelta(minutes=MINUTES_AGO["/tables/db.mine/timeline"]), events[::2][:2])
        ),
        groups=fixed_feed(
            History(
                NOW - timedelta(minutes=MINUTES_AGO["/timeline"]),
                events,
                ledger_rows=5,
                activity={
                    f"db.{n}": TableActivity([BatchEnd(EVENT_AT, f"t.{n}", 2, "published", 60)], 60, 0)
                    for n in TABLE_NAMES
                },
            ),
            busy=True,
        ),
        failed=SimpleNamespace(
            get_feed=lambda key: fixed_feed(History(NOW, [runs[dag].event for dag in json.loads(key)[0]]))
        ),
        dry_runs=fixed_feed(DryRun([SHARED_TOPIC_MESSAGE], {"ranges": {"0": [3, 9]}})),
        records=fixed_feed(TRACE),
        costs=fixed_feed(COST),
        last_day=fixed_feed({f"db.{n}": COST.facts.days[0] for n in TABLE_NAMES if COST.facts}),
        reports=fixed_feed(f"<h1>What a run left</h1>{SHARED_TOPIC_MESSAGE}"),
    )
    reading.feeds = lambda: filled
    (login,) = plugin.app.router.dependencies

    def authorized(*, user: str, method: str) -> set[str]:
        return READABLE if (user, method) == ("somebody", "GET") else set()

    manager = SimpleNamespace(
        get_authorized_dag_ids=authorized,
        is_authorized_dag=lambda details, **_: details.id in ("ingest_mine", "backfill"),
    )
    reading.get_auth_manager = operations.get_auth_manager = lambda: manager
    plugin.app.dependency_overrides |= {login.dependency: lambda: None, get_user: lambda: "somebody"}
    client = TestClient(plugin.app)
    # Of the runs, all are called "r", and every readable DAG has one.
    reading.is_readable_run = lambda run_id, dags: run_id == "r" and bool(dags)
    asked = (
        "",
        "&dag_id=ingest_mine",
        "&dag_id=ingest_mine&task_id=db.mine",
        "&dag_id=backfill",
    )
    found: dict[str, Any] = {at: get_answer(client, at) for at in (f"/quality?run_id=r{each}" for each in asked)}
    found |= ask_for_hidden_runs(client, filled) | ask_for_chosen_tables(client)
    for route in plugin.app.routes:
        path = getattr(route, "path", "")
        for name in TABLE_NAMES if "{name}" in path and "static" not in path else ("",):
            at = path.replace("{name}", f"db.{name}" if name else "sluice.css").replace("/record", "/record?at=0:3")
            answer = get_and_check_waiting(client, at)
            found[at] = [answer.status_code, answer.text]
            assert answer.headers["x-content-type-options"] == "nosniff", at
            # The report is another application's HTML, so it is sandboxed.
            assert (at == "/tables/db.mine/report") == ("sandbox" in answer.headers["content-security-policy"]), at
            assert ("static" in at) == (answer.headers["cache-control"] != "no-store"), at
    found |= {f"all: {at}": answer for at, answer in ask_as_unrestricted_user(client, filled).items()}
    found |= ask_with_failed_feeds(client, filled)
    found |= {f"refused: {at}": get_answer(client, at) for at in REFUSED_PATHS}
    filled.status = fixed_feed(None)
    for at in ("/api/tables?unread", "/metrics?unread"):
        found[f"refused: {at}"] = [(answer := client.get(at)).status_code, answer.text]
        assert answer.headers["retry-after"], at
    plugin.app.dependency_overrides.clear()
    found |= {f"refused: {at}": get_answer(client, at) for at in ("/api/tables?login", "/metrics?login")}
    read_at = {at: (NOW - timedelta(minutes=ago)).isoformat() for at, ago in MINUTES_AGO.items()}
    print(json.dumps(found | {"read at": [200, json.dumps(read_at)]}))


if __name__ == "__main__":
    main()
