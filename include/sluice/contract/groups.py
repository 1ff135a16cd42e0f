"""Settings of a group of tables: when its DAG runs and what its one Spark application is given. And maintenance's.

They stand in `groups.yaml` beside the contracts; a group that is not named there takes the defaults. Light, because DAG
files read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from croniter import CroniterBadDateError, CroniterError, croniter
from pydantic import AfterValidator, Field, ValidationError, model_validator

from sluice.contract.document import Document, Problem, read_document
from sluice.contract.messages import explain
from sluice.contract.values import Duration, Flaws, Instant, ListField, Properties, Strict, Whole, nearest

GROUPS_FILE = "groups.yaml"
"""Name of the file that holds the groups' settings."""

_M = TypeVar("_M", bound=Strict)

_MEMORY = r"[1-9][0-9]{0,5}[kmgt]"
_CONNECTION = r"[A-Za-z0-9_.\-]{1,200}"
_PRESETS = frozenset(("@once", "@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly", "@continuous"))
_CRON_FIELD = re.compile(r"[0-9A-Za-z*/,#?-]+")
_SECRET = re.compile(r"secret|password|passwd|token|credential|access\.?key", re.IGNORECASE)
_OWN_CONF = {
    "spark.driver.memory": "use driver_memory",
    "spark.executor.memory": "use executor_memory",
    "spark.sql.extensions": "Sluice sets it",
    **dict.fromkeys(
        ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.mapKeyDedupPolicy"),
        "Sluice sets it: what rows hold hangs on it",
    ),
}
_OWN_PREFIXES = {
    "spark.sql.catalog.": "the catalog is configured once, in PyIceberg's own configuration",
    "spark.sql.iceberg.snapshot-property.": "Sluice writes its offsets there",
}


def _schedule(value: str) -> str:
    fields = value.split()
    cron = len(fields) == 5 and all(_CRON_FIELD.fullmatch(field) for field in fields)
    if value not in _PRESETS and not cron:
        raise ValueError(f"{value!r} is neither five cron fields nor one of {', '.join(sorted(_PRESETS))}")
    if cron:
        try:  # Airflow asks the same library, and makes no DAG of what it refuses
            croniter(value).get_next()
        except CroniterBadDateError as error:
            raise ValueError(f"{value!r} names no day that ever comes") from error
        except CroniterError as error:
            raise ValueError(f"{value!r} is no cron expression: {error}") from error
    return value


def _history(value: timedelta | None) -> timedelta | None:
    if value is not None and value < timedelta(days=8):
        raise ValueError("must be 8d or more: the pages show a week of it")
    return value


Schedule = Annotated[str, AfterValidator(_schedule)]
Pool = Annotated[str, Field(min_length=1, max_length=256)]
History = Annotated[Duration | None, AfterValidator(_history)]


class SparkSettings(Strict):
    """The Spark application of a group.

    Attributes:
        connection: Airflow connection that names the master. Default `spark_default`.
        driver_memory: Heap of the driver, a number and k, m, g or t. Default `2g`.
        executor_memory: Heap of each executor. Default: Spark's own.
        conf: Further Spark configuration; no secrets, since `ps` shows them.
    """

    connection: Annotated[str, Field(pattern=f"^{_CONNECTION}$")] = "spark_default"
    driver_memory: Annotated[str, Field(pattern=f"^{_MEMORY}$")] = "2g"
    executor_memory: Annotated[str, Field(pattern=f"^{_MEMORY}$")] | None = None
    conf: Properties = Field(default_factory=dict)

    @model_validator(mode="after")
    def _conf_is_ours_to_set(self) -> Self:
        flaws = Flaws()
        for key in self.conf:
            prefix = next((each for each in _OWN_PREFIXES if key.startswith(each)), None)
            if not key.startswith("spark."):
                flaws.add("conf", key, message="a Spark setting starts with 'spark.'")
            elif key in _OWN_CONF or prefix:
                flaws.add("conf", key, message=_OWN_CONF.get(key) or _OWN_PREFIXES[str(prefix)])
            elif _SECRET.search(key):
                flaws.add("conf", key, message="looks like a secret, and `ps` would show it: use the environment")
        flaws.raise_any("SparkSettings")
        return self


class GroupMaintenance(Strict):
    """How the maintenance of a group's tables shares a pool with their ingestion, or does not.

    Attributes:
        seconds_per_turn: After so many seconds no further table is begun: the slot goes to whoever waits, ingestion
            first, and the same run goes on with the tables that are left. At most half of the group's timeout. Default
            240.
        pool: Airflow pool of the maintenance. Default: the group's. With another, ingestion never waits for it.
    """

    seconds_per_turn: Whole = 240
    pool: Pool | None = None


class GroupSettings(Strict):
    """Settings of one group.

    Attributes:
        schedule: Cron expression of five fields, a preset such as `@hourly`, or None to run by hand. Default: every
            five minutes.
        start_date: First moment of the schedule, a timestamp with a time zone. Default: none.
        retries: Further tries of a failed task. Default 2.
        retry_delay: Pause before a further try. Default 1 minute.
        timeout: Most time that one Spark application may take. Default 1 hour.
        topics_at_once: How many topics are staged and published side by side. Default 2.
        spark: The Spark application.
        tags: Tags of the DAG in Airflow.
        pool: Airflow pool of the Spark task. Default `sluice_spark`.
        maintenance: How maintenance shares it, or which it has instead.
    """

    schedule: Schedule | None = "*/5 * * * *"
    start_date: Instant | None = None
    retries: Annotated[int, Field(strict=True, ge=0, le=100)] = 2
    retry_delay: Duration = timedelta(minutes=1)
    timeout: Duration = timedelta(hours=1)
    topics_at_once: Annotated[int, Field(strict=True, ge=1, le=64)] = 2
    spark: SparkSettings = SparkSettings()
    tags: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=100)], ...], ListField] = ()
    pool: Pool = "sluice_spark"
    maintenance: GroupMaintenance = GroupMaintenance()

    @property
    def turn(self) -> int:
        """How many seconds maintenance begins tables for, at a time."""
        return max(min(self.maintenance.seconds_per_turn, int(self.timeout.total_seconds()) // 2), 1)


class CommonMaintenance(Strict):
    """The maintenance DAGs, one for all groups: when each runs, as a group's `schedule`; how long it is told.

    Attributes:
        rewrite_data_files: Default: every hour.
        expire_snapshots: Default: every day.
        remove_orphan_files: Default: every week.
        history: How long `sluice.maintenance` and `sluice.quality` keep what they tell; None: for ever. Default 90
            days.
    """

    rewrite_data_files: Schedule | None = "@hourly"
    expire_snapshots: Schedule | None = "@daily"
    remove_orphan_files: Schedule | None = "@weekly"
    history: History = timedelta(days=90)

    @property
    def schedules(self) -> dict[str, str | None]:
        """By action."""
        return self.model_dump(exclude={"history"})


class Notify(Strict):
    """One of Airflow's notifiers.

    Attributes:
        notifier: Its class, a dotted name such as `airflow.providers.smtp.notifications.smtp.SmtpNotifier`.
        arguments: What it is made with; its templates know `incident`. No secrets: they belong into a connection.
    """

    notifier: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$", max_length=200)]
    arguments: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _no_secrets(self) -> Self:
        flaws = Flaws()
        for key in self.arguments:
            if _SECRET.search(key):
                flaws.add("arguments", key, message="looks like a secret: put it into an Airflow connection")
        flaws.raise_any("Notify")
        return self


class Alerts(Strict):
    """Whom to tell when a table needs a person, once per incident.

    Attributes:
        schedule: When to look, as a group's `schedule`. Default: every five minutes.
        states: Which states are an incident, as docs/pages.md has them.
        quarantine_ratio: The share of a table's records of the last 24 hours from which on it is `rejecting`.
        failed_runs: How many runs in a row must have failed at a table's batch before `failed` is an incident.
        notifiers: Who is told. Without any the DAG's own red run tells it.
    """

    schedule: Schedule | None = "*/5 * * * *"
    states: Annotated[
        tuple[
            Literal[
                "blocked", "stopped", "failed", "late", "review", "doubtful", "at risk", "backfill refused", "rejecting"
            ],
            ...,
        ],
        ListField,
    ] = ("blocked", "stopped", "failed", "late", "at risk", "rejecting")
    quarantine_ratio: Annotated[float, Field(gt=0, le=1)] = 0.01
    failed_runs: Annotated[int, Field(ge=1)] = 1
    notifiers: Annotated[tuple[Notify, ...], ListField] = ()


@dataclass(frozen=True)
class Common:
    """What `groups.yaml` says for all groups together; None where that is wrong, or, of alerts, is not there."""

    maintenance: CommonMaintenance | None = field(default_factory=CommonMaintenance)
    alerts: Alerts | None = None


def read_groups(
    folder: Path, used: set[str], problems: list[Problem]
) -> tuple[dict[str, GroupSettings] | None, set[str], Common]:
    """Read `groups.yaml`: settings by group (None if the file is no use), the groups it gets wrong, and the rest."""
    path = folder / GROUPS_FILE
    if not path.exists():
        return {name: GroupSettings() for name in used}, set(), Common()
    document = read_document(path, str(path))
    problems += document.problems
    entries = {} if document.data is None else document.data
    if document.problems or not isinstance(entries, dict):
        if not document.problems:
            problems.append(Problem(document.file, 1, "", "must be a map of group names to settings"))
        return None, set(), Common(None)
    broken: set[str] = set()
    plain: dict[str, dict[str, object]] = {}
    common = Common(
        _settings(CommonMaintenance, "maintenance", entries.get("maintenance"), document, problems),
        _settings(Alerts, "alerts", entries["alerts"], document, problems) if "alerts" in entries else None,
    )
    for name, given in entries.items():
        if name in ("maintenance", "alerts"):
            continue
        entry = {} if given is None else given
        if name != "defaults" and name not in used:
            problems.append(document.problem((str(name),), f"no contract is in this group{nearest(str(name), used)}"))
        if _settings(GroupSettings, str(name), entry, document, problems):
            plain[str(name)] = entry
        else:
            broken.add(str(name))
    if "defaults" in broken:
        return None, broken, common
    defaults = plain.get("defaults", {})
    merged = {name: _merged(defaults, plain.get(name, {})) for name in used}
    return {name: GroupSettings.model_validate(each) for name, each in merged.items()}, broken, common


def _settings(model: type[_M], name: str, given: object, document: Document, problems: list[Problem]) -> _M | None:
    """One entry of `groups.yaml`; None, and its problems, where it is wrong."""
    entry = {} if given is None else given
    try:
        return model.model_validate(entry)
    except ValidationError as error:
        for location, message in explain(error, model, entry):
            problems.append(document.problem((name, *location), message))
        return None


def _merged(common: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Lay a group's own settings over the common ones, map by map."""
    merged: dict[str, object] = dict(common)
    for key, value in own.items():
        base = merged.get(key)
        merged[key] = _merged(base, value) if isinstance(base, dict) and isinstance(value, dict) else value
    return merged
