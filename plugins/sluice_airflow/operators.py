"""The operators of `jobs/`: what each is given, when it is skipped, and what its result means."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sluice.contract.groups import GroupSettings
from sluice_airflow import turns
from sluice_airflow.connections import fail_with_message, open_catalog
from sluice_airflow.job_operator import JobOperator
from sluice_airflow.sdk import AirflowException

# Linux limits an argument to 128 KiB.
MAX_ARGUMENT_BYTES = 64 << 10
CLOCKS_DIFFER = timedelta(minutes=2)


class IngestOperator(JobOperator):
    """Runs `jobs/ingest.py` for a group.

    Args:
        promised: The plan's expected work (`sluice.ingest.outcome`); without work the task is skipped. None: the group
            is continuous, and its application plans by itself.
    """

    template_fields = (*JobOperator.template_fields, "promised")

    def __init__(self, *, group: str, settings: GroupSettings, promised: Any = None, **kwargs: Any) -> None:
        self.stays, self.settings = settings.is_continuous, settings
        stay = [f"--stay={settings.continuous.stay.total_seconds():.0f}"] if self.stays else []
        command = ["ingest.py", f"--group={group}", "--run-id={{ run_id }}", *stay]
        super().__init__(command=command, group=group, settings=settings, **kwargs)
        self.promised = promised

    def execute(self, context: Any) -> None:
        """Run the application; that of a continuous group ends early when other tasks of the group wait for the slot.

        A driver on another machine can't see the file, and a service starts such drivers only.
        """
        if not self.stays or self.service:
            super().execute(context)
            return
        with turns.watch_pool(self.group, self.settings, context["ti"]) as file:
            self.application_args = [*(self.application_args or []), f"--end-file={file}"]
            super().execute(context)

    def skip_reason(self) -> str | None:
        """Skip if the plan has no work."""
        if self.stays or self.promised is None or self.promised["has_work"]:
            return None
        return "Nothing to stage or to publish: no Spark application is started."

    def is_small(self) -> bool:
        """Whether the plan is small, and the application ends with it."""
        return bool(self.promised and self.promised["is_small"] and not self.stays)


class MaintainOperator(JobOperator):
    """Runs `jobs/maintain.py` for the tables of a group that need an action.

    Args:
        action: The maintenance action.
        seconds: After this time the job starts no further table, and gives its slot to waiting tasks.
        needs: The assessments of `assess`, a list of maps; without a need in this group the task is skipped.
        dry_run: "True" to only list orphan files.
    """

    template_fields = (*JobOperator.template_fields, "needs", "dry_run")

    def __init__(
        self, *, action: str, group: str, seconds: int, needs: Any = None, dry_run: str = "", **kwargs: Any
    ) -> None:
        command = ["maintain.py", f"--action={action}", "--run-id={{ run_id }}", f"--seconds={seconds}"]
        log = f"{group}-{action}"
        super().__init__(command=command, group=group, log=log, **kwargs)
        self.needs, self.dry_run = needs, dry_run
        self.action, self.due = action, list[str]()

    def skip_reason(self) -> str | None:
        """Skip if no table needs anything; else pass the tables as an argument."""
        self.due = [need["table"] for need in self.needs or () if need["group"] == self.group and need["steps"]]
        tables = json.dumps(self.due)
        if len(tables) > MAX_ARGUMENT_BYTES:
            self.listing = tempfile.NamedTemporaryFile("w", prefix="sluice-", suffix=".json")  # noqa: SIM115 - as long as the operator
            self.listing.write(tables)
            self.listing.flush()
            tables = f"@{self.listing.name}"
            self.sent_files = [self.listing.name]
        flags = ["--dry-run"] if self.dry_run == "True" else []
        self.application_args = [*(self.application_args or []), "--tables", tables, *flags]
        return None if self.due else "No table needs anything: no Spark application is started."

    def is_unfinished(self, context: Any) -> bool:
        """Whether tables wait: those without a result of this run in `sluice.maintenance`.

        Raises:
            AirflowException: No table has a result, though each application tries one at least.
        """
        from sluice.ledger import maintenance_table

        with fail_with_message():
            catalog, _ = open_catalog()
            action = maintenance_table.Action(self.action)
            waiting = maintenance_table.find_tables_without_result(catalog, action, self.due, run_id=context["run_id"])
        if len(waiting) == len(self.due):
            raise AirflowException("The application has ended, and wrote no result into sluice.maintenance.")
        return bool(waiting)


class BackfillOperator(JobOperator):
    """Runs `jobs/backfill.py` for some slices of a backfill, one after another.

    Args:
        work: Table, topic, origin, slices' numbers and run id.
    """

    def __init__(self, *, work: Mapping[str, Any], group: str, settings: GroupSettings, **kwargs: Any) -> None:
        fields_by_option = {"table": "table", "topic": "topic", "source": "origin", "run-id": "run_id"}
        first, *_, last = [work["slices"][0], *work["slices"]]
        # As `--option=value`: a topic may begin with a dash.
        command = [
            "backfill.py",
            *(f"--{option}={work[field]}" for option, field in fields_by_option.items()),
            f"--slices={','.join(map(str, work['slices']))}",
            f"--seconds={settings.maintenance_seconds}",
        ]
        super().__init__(command=command, group=group, settings=settings, log=f"{group}-backfill{first}", **kwargs)
        self.map_name = f"slice {first}" if first == last else f"slices {first} to {last}"
        self.work = work

    def is_unfinished(self, context: Any) -> bool:  # noqa: ARG002 - the run id is that of the slices
        """Whether slices wait: those that are not in the table, and that the run has not tried.

        Raises:
            AirflowException: It has tried none, though each application tries one at least.
        """
        from sluice.backfill import backfill_outcome

        asked = self.work["table"], self.work["topic"], self.work["slices"]
        with fail_with_message():
            catalog, contracts = open_catalog()
            waiting = backfill_outcome.read_progress(contracts, catalog, asked, self.work["run_id"]).untried
        if len(waiting) == len(self.work["slices"]):
            raise AirflowException("The application has ended, and wrote no result into the ledger.")
        return bool(waiting)

    def needs_action(self, error: Exception) -> bool:
        """Whether the ledger, or the exit code, says that a retry does not help."""
        from sluice.backfill import backfill_outcome

        if super().needs_action(error):
            return True
        try:
            catalog, _ = open_catalog()
            return backfill_outcome.needs_action(catalog, self.work, self.began - CLOCKS_DIFFER)
        except Exception as failure:  # noqa: BLE001 - the application's error is the one to show
            self.log.warning("The ledger could not be asked why slices failed: %s", type(failure).__name__)
            return False


class CompareOperator(JobOperator):
    """Runs `jobs/compare.py`.

    Args:
        asked: The request as JSON, and who asks.
    """

    template_fields = (*JobOperator.template_fields, "asked")

    def __init__(self, *, group: str, settings: GroupSettings, asked: Any = None, **kwargs: Any) -> None:
        command = ["compare.py", "--run-id={{ run_id }}"]
        super().__init__(command=command, group=group, settings=settings, log=f"{group}-compare", **kwargs)
        self.asked = asked

    def execute(self, context: Any) -> None:
        """Run the application."""
        given = [f"--{name}={self.asked[name]}" for name in ("request", "who")]
        self.application_args = [*(self.application_args or []), *given]
        super().execute(context)
