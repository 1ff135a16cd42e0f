"""`groups.yaml`: schedule and Spark application of each group of tables, and the settings of maintenance and alerts.

A group that is not in the file has the defaults. DAG files are generated from these settings.
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
from sluice.contract.suggestions import did_you_mean
from sluice.contract.validation_messages import describe_errors
from sluice.contract.values import Duration, FieldErrors, ListField, PositiveInt, Properties, StrictModel, Timestamp

GROUPS_FILE = "groups.yaml"
"""File with the groups' settings, beside the contracts."""

ON_DATA = "on_data"
"""The schedule of a group that runs when its topics have unread records."""

CONTINUOUS = "continuous"
"""The schedule of a group whose Spark application stays and makes one round after another."""
LAST_ROUND = timedelta(minutes=5)
"""How much longer than `stay` an application may take: a round that has begun is finished."""

_M = TypeVar("_M", bound=StrictModel)

_MEMORY = r"[1-9][0-9]{0,5}[kmgt]"
_CONNECTION = r"[A-Za-z0-9_.\-]{1,200}"
_PRESETS = frozenset(("@once", "@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly", "@continuous"))
_CRON_FIELD = re.compile(r"[0-9A-Za-z*/,#?-]+")
_CONF_NAME = re.compile(r"[A-Za-z0-9._/*-]+")
_SECRET = re.compile(r"secret|password|passwd|token|credential|access\.?key", re.IGNORECASE)
# The name of a Kubernetes Secret, or the path of a credential file. `ps` may show it.
_SECRET_BY_NAME = re.compile(
    r"spark\.kubernetes\.(driver|executor)\.(secretKeyRef|secrets)\.|spark\.hadoop\.hadoop\.security\.credential\.provider\.path$"
)
_RESERVED_CONF = {
    "spark.driver.memory": "use driver_memory",
    "spark.executor.memory": "use executor_memory",
    "spark.sql.extensions": "Sluice sets it",
    **dict.fromkeys(
        ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.mapKeyDedupPolicy"),
        "Sluice sets it: the values of rows depend on it",
    ),
}
_RESERVED_PREFIXES = {
    "spark.sql.catalog.": "the catalog is configured once, in PyIceberg's own configuration",
    "spark.sql.iceberg.snapshot-property.": "Sluice writes its offsets there",
}


def _schedule(value: str) -> str:
    fields = value.split()
    cron = len(fields) == 5 and all(_CRON_FIELD.fullmatch(field) for field in fields)
    if value not in _PRESETS and not cron:
        raise ValueError(f"{value!r} is neither five cron fields nor one of {', '.join(sorted(_PRESETS))}")
    if cron:
        try:  # Airflow uses the same library, and creates no DAG for what it rejects
            croniter(value).get_next()
        except CroniterBadDateError as error:
            raise ValueError(f"{value!r} matches no date") from error
        except CroniterError as error:
            raise ValueError(f"{value!r} is not a cron expression: {error}") from error
    return value


def _ingest_schedule(value: str) -> str:
    if value in (ON_DATA, CONTINUOUS):
        return value
    try:
        return _schedule(value)
    except ValueError as error:
        raise ValueError(f"{error}, nor {ON_DATA}, nor {CONTINUOUS}") from error


def _pause(value: timedelta) -> timedelta:
    if value < timedelta(seconds=2):
        raise ValueError("must be 2s or more: each round makes several commits")
    return value


def _history(value: timedelta | None) -> timedelta | None:
    if value is not None and value < timedelta(days=8):
        raise ValueError("must be 8d or more: the pages show a week")
    return value


Schedule = Annotated[str, AfterValidator(_schedule)]
IngestSchedule = Annotated[str, AfterValidator(_ingest_schedule)]
Pool = Annotated[str, Field(min_length=1, max_length=256)]
RetentionPeriod = Annotated[Duration | None, AfterValidator(_history)]


class SparkSettings(StrictModel):
    """The Spark application of a group.

    Attributes:
        connection: Airflow connection that names the Spark master and the deploy mode: type spark.
        driver_memory: Heap of the driver: a number and `k`, `m`, `g` or `t`.
        executor_memory: Heap of each executor. Default: Spark's own.
        conf: Further Spark settings, whose names begin with `spark.`; no secrets, because `ps` shows them.
    """

    connection: Annotated[str, Field(pattern=f"^{_CONNECTION}$")] = "spark_default"
    driver_memory: Annotated[str, Field(pattern=f"^{_MEMORY}$")] = "2g"
    executor_memory: Annotated[str, Field(pattern=f"^{_MEMORY}$")] | None = None
    conf: Properties = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_conf(self) -> Self:
        errors = FieldErrors()
        for key in self.conf:
            prefix = next((each for each in _RESERVED_PREFIXES if key.startswith(each)), None)
            if not key.startswith("spark."):
                errors.add("conf", key, message="must start with 'spark.'")
            elif not _CONF_NAME.fullmatch(key):  # with a = or a line feed it would set another setting
                errors.add("conf", key, message="is not the name of a setting: letters, digits and . _ - / * only")
            elif key in _RESERVED_CONF or prefix:
                errors.add("conf", key, message=_RESERVED_CONF.get(key) or _RESERVED_PREFIXES[str(prefix)])
            elif _SECRET.search(key) and not _SECRET_BY_NAME.match(key):
                errors.add("conf", key, message="looks like a secret, which `ps` would show: use the environment")
        errors.raise_any("SparkSettings")
        return self


class OnData(StrictModel):
    """Which unread records start a run, with `schedule: on_data`.

    Attributes:
        min_records: A run starts when the group's topics have so many unread offsets.
        max_wait: It starts with fewer when one was seen so long ago.
    """

    min_records: PositiveInt = 100_000
    max_wait: Duration = timedelta(seconds=30)


class Continuous(StrictModel):
    """The rounds of a group with `schedule: continuous`. A round plans, stages, publishes and settles.

    Attributes:
        every: From the start of one round to the start of the next; 2s or more. The next one follows at once if a round
            takes longer.
        stay: After so long the Spark application begins no further round, and the next DAG run starts another one. At
            least 5 minutes less than `timeout`.
    """

    every: Annotated[Duration, AfterValidator(_pause)] = timedelta(seconds=10)
    stay: Duration = timedelta(minutes=55)


class GroupMaintenance(StrictModel):
    """How maintenance of a group's tables shares an Airflow pool with ingestion.

    Attributes:
        seconds_per_turn: After so many seconds maintenance begins no further table and gives its slot to waiting tasks,
            ingestion first; the same run continues later. At most half of `timeout` is used.
        pool: Another Airflow pool for maintenance, so that ingestion never waits for it. Default: the group's.
    """

    seconds_per_turn: PositiveInt = 240
    pool: Pool | None = None


class GroupSettings(StrictModel):
    """Settings of one group.

    Attributes:
        schedule: When the DAG runs: five cron fields, a preset such as `@hourly`, `on_data`: when there are unread
            records, `continuous`: always, or null: only when triggered.
        on_data: Which unread records start a run, with `schedule: on_data`.
        continuous: How often a run ingests, and how long it lasts, with `schedule: continuous`.
        start_date: Beginning of the schedule, a timestamp with a time zone.
        retries: Further tries of a failed task.
        retry_delay: Pause before a further try.
        timeout: Most time for one Spark application.
        topics_at_once: How many topics of the group are staged and published in parallel in its application.
        spark: The Spark application.
        asset_events: What emits the asset events of the tables: `task`: the table's task, at the end of the DAG run;
            `table`: a watcher of the table, for each snapshot. Default: `table` with `schedule: continuous`, otherwise
            `task`.
        tags: Tags of the DAG.
        pool: Airflow pool of the group's Spark tasks: ingestion, backfills and maintenance.
        maintenance: How maintenance shares that pool.
    """

    schedule: IngestSchedule | None = "*/5 * * * *"
    on_data: OnData = OnData()
    continuous: Continuous = Continuous()
    start_date: Timestamp | None = None
    retries: Annotated[int, Field(strict=True, ge=0, le=100)] = 2
    retry_delay: Duration = timedelta(minutes=1)
    timeout: Duration = timedelta(hours=1)
    topics_at_once: Annotated[int, Field(strict=True, ge=1, le=64)] = 2
    spark: SparkSettings = SparkSettings()
    asset_events: Literal["task", "table"] | None = None
    tags: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=100)], ...], ListField] = ()
    pool: Pool = "sluice_spark"
    maintenance: GroupMaintenance = GroupMaintenance()

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        errors = FieldErrors()
        for name in (ON_DATA, CONTINUOUS):
            if name in self.model_fields_set and self.schedule != name:
                errors.add(name, message=f"needs schedule: {name}")
        if self.is_continuous and self.continuous.stay + LAST_ROUND > self.timeout:
            errors.add(CONTINUOUS, "stay", message="must be at least 5 minutes less than timeout")
        errors.raise_any("GroupSettings")
        return self

    @property
    def is_continuous(self) -> bool:
        """Whether the group's Spark application stays and makes one round after another."""
        return self.schedule == CONTINUOUS

    @property
    def has_watchers(self) -> bool:
        """Whether watchers emit the asset events of the group's tables."""
        return (self.asset_events or ("table" if self.is_continuous else "task")) == "table"

    @property
    def maintenance_pool(self) -> str:
        """The pool of the group's maintenance."""
        return self.maintenance.pool or self.pool

    @property
    def pools(self) -> set[str]:
        """The Airflow pools that the group's tasks wait for."""
        return {self.pool, self.maintenance_pool}

    @property
    def maintenance_seconds(self) -> int:
        """Seconds after which maintenance starts no further table in one turn."""
        return max(min(self.maintenance.seconds_per_turn, int(self.timeout.total_seconds()) // 2), 1)


class CommonMaintenance(StrictModel):
    """The schedules of the maintenance DAGs, one for all groups, written as a group's `schedule`.

    Attributes:
        rewrite_data_files: When `maintain_rewrite_data_files` runs.
        expire_snapshots: When `maintain_expire_snapshots` runs.
        remove_orphan_files: When `maintain_remove_orphan_files` runs.
        history: How long `sluice.maintenance`, `sluice.quality` and `sluice.costs` keep their rows, and up to a tenth
            longer; 8 days or more, null: forever.
    """

    rewrite_data_files: Schedule | None = "@hourly"
    expire_snapshots: Schedule | None = "@daily"
    remove_orphan_files: Schedule | None = "@weekly"
    history: RetentionPeriod = timedelta(days=90)

    @property
    def schedules(self) -> dict[str, str | None]:
        """The schedules by action."""
        return self.model_dump(exclude={"history"})


class NotifierSettings(StrictModel):
    """One of Airflow's notifiers.

    Attributes:
        notifier: Its class, such as `airflow.providers.smtp.notifications.smtp.SmtpNotifier`.
        arguments: Its arguments; their templates can use `incident`. No secrets: those belong in a connection.
    """

    notifier: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+$", max_length=200)]
    arguments: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _no_secrets(self) -> Self:
        errors = FieldErrors()
        for key in self.arguments:
            if _SECRET.search(key):
                errors.add("arguments", key, message="looks like a secret: put it into an Airflow connection")
        errors.raise_any("Notify")
        return self


class AlertSettings(StrictModel):
    """Whom DAG `alerts` notifies, once per incident, when a table needs attention.

    Attributes:
        schedule: When to check the tables, written as a group's `schedule`.
        states: The states of a table that are incidents.
        quarantine_ratio: A table is `rejecting` if this share of the records of the last 24 hours is quarantined.
        failed_runs: `failed` is an incident after so many failed runs in a row at the table's batch.
        notifiers: Who is notified. Without any, the DAG's failed run is the notification.
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
    notifiers: Annotated[tuple[NotifierSettings, ...], ListField] = ()


@dataclass(frozen=True)
class CommonSettings:
    """Settings in `groups.yaml` for all groups; None if they are invalid, or if there are no alerts."""

    maintenance: CommonMaintenance | None = field(default_factory=CommonMaintenance)
    alerts: AlertSettings | None = None


def read_groups(
    folder: Path, used: set[str], problems: list[Problem]
) -> tuple[dict[str, GroupSettings] | None, set[str], CommonSettings]:
    """Read `groups.yaml`.

    Args:
        folder: the folder of contracts.
        used: names of the groups that contracts are in.
        problems: where to add problems.

    Returns:
        Settings by group (None if the file is unusable), the names of invalid groups, and the common settings.
    """
    path = folder / GROUPS_FILE
    if not path.exists():
        return {name: GroupSettings() for name in used}, set(), CommonSettings()
    document = read_document(path, str(path))
    problems += document.problems
    entries = {} if document.data is None else document.data
    if document.problems or not isinstance(entries, dict):
        if not document.problems:
            problems.append(Problem(document.file, 1, "", "must be a map of group names to settings"))
        return None, set(), CommonSettings(None)
    invalid: set[str] = set()
    found: dict[str, GroupSettings] = {}
    common = CommonSettings(
        _settings(CommonMaintenance, "maintenance", entries.get("maintenance"), document, problems),
        _settings(AlertSettings, "alerts", entries["alerts"], document, problems) if "alerts" in entries else None,
    )
    defaults = entries.get("defaults") or {}
    if not _settings(GroupSettings, "defaults", defaults, document, problems):
        return None, {"defaults"}, common
    for name, value in entries.items():
        if name in ("maintenance", "alerts", "defaults"):
            continue
        if name not in used:
            problems.append(
                document.problem((str(name),), f"no contract is in this group{did_you_mean(str(name), used)}")
            )
        # With the defaults, because some settings depend on others.
        entry = merge(defaults, value) if isinstance(value, dict) else value or defaults
        if settings := _settings(GroupSettings, str(name), entry, document, problems):
            found[str(name)] = settings
        else:
            invalid.add(str(name))
    usual = GroupSettings.model_validate(defaults)
    return {name: found.get(name, usual) for name in used}, invalid, common


def _settings(model: type[_M], name: str, given: object, document: Document, problems: list[Problem]) -> _M | None:
    """Validate one entry of `groups.yaml`; if it is invalid, add its problems and return None."""
    entry = {} if given is None else given
    try:
        return model.model_validate(entry)
    except ValidationError as error:
        for location, message in describe_errors(error, model, entry):
            problems.append(document.problem((name, *location), message))
        return None


def merge(common: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Return the common values, overridden by the own ones; maps are merged entry by entry."""
    merged: dict[str, object] = dict(common)
    for key, value in own.items():
        base = merged.get(key)
        merged[key] = merge(base, value) if isinstance(base, dict) and isinstance(value, dict) else value
    return merged
