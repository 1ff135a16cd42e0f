"""The operations on one table that its pages have a button for.

In: a table, and what its viewer may do in Airflow. Out: an `Operation` per button; None where the viewer may not do it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sluice import dag_ids
from sluice.pages.operations import Field, Operation, Rights
from sluice.status.verdicts import Tone

if TYPE_CHECKING:
    from sluice.pages.detail import TableDetail
    from sluice.status.model import TableStatus
    from sluice.status.verdicts import Verdict

APPROVE, REJECT = "Approve", "Reject"
"""The answers of the task `decide` of DAG `review_schema`."""

KAFKA, STAGING, QUARANTINE = SOURCES = ("kafka", "staging", "quarantine")
"""The values of `sluice.ledger.slices.Origin`, whose module loads PyIceberg."""

_NOT_IN_A_RUN_ID = re.compile(r"[^A-Za-z0-9_.~:+-]")  # by Airflow's default `[scheduler] allowed_run_id_pattern`

WHY = Field("why", "Reason", "area", required=True, hint="The ledger keeps it with your name.")
NOTE = Field("why", "Reason", "area", hint="Airflow keeps it as the note of the run.")


class TableOperations:
    """The operations on one table that a viewer may start."""

    def __init__(self, table: TableStatus, rights: Rights, review: str | None = None) -> None:
        """Prepare them.

        Args:
            review: the run of DAG `review_schema` that waits for an answer about this table.
        """
        self._table, self._rights, self._review = table, rights, review
        self._name, self._ingest = table.table, dag_ids.ingest_dag(table.group)

    @property
    def table_name(self) -> str:
        """The table's name."""
        return self._name

    def by_verdict(self, verdicts: Iterable[Verdict]) -> list[tuple[Verdict, list[Operation]]]:
        """What is wrong with the table, each with its operations; one that may end several states stands once.

        A state that needs nothing is left out beside others.
        """
        found: list[tuple[Verdict, list[Operation]]] = []
        seen: set[str] = set()
        for verdict in verdicts:
            new = [each for each in self.for_verdict(verdict) if each.title not in seen]
            seen.update(each.title for each in new)
            if not found or verdict.tone < Tone.GOOD:
                found.append((verdict, new))
        return found

    def for_verdict(self, verdict: Verdict) -> list[Operation]:
        """The operations that may end a state of the table, the usual one first."""
        found: list[Operation | None] = []
        if verdict.word == "review":
            found = self._for_change()
        elif verdict.word == "stopped":
            found = [self.accept_gap()]
        elif verdict.word in ("late", "paused", "at risk", "new"):
            found = self._runs()
        elif verdict.decided:
            found = [] if self._table.run else self._runs()
        elif verdict.word in ("blocked", "failed"):
            found = self._runs()
            if verdict.word == "blocked" and not verdict.by_expectation:
                found.append(self.publish_blocked())
        return [each for each in found if each]

    def next_step(self, verdict: Verdict) -> str:
        """The next step: that of the message, else by the names of the buttons of the table's page."""
        advice = verdict.why.partition(" Next step: ")[2]
        if advice and verdict.word != "blocked":  # buttons do what the longer advice says
            return advice
        buttons = " or ".join(each.submit for each in self.for_verdict(verdict))
        if verdict.word != "review" or not buttons or self._table.schema_state == "due":
            return verdict.todo
        if self._table.schema_state == "rejected":
            back = "Approve" if self._review else "Review again, then Approve"
            return f"Take the change out of the contract file. Or take the rejection back: {back}."
        return f"{buttons} it." if self._review else "Review it, then approve or reject it here."

    def _for_change(self) -> list[Operation | None]:
        state = self._table.schema_state
        if state == "due":
            return self._runs()
        if state not in ("open", "rejected"):
            return []
        return [self.answer(APPROVE), self.answer(REJECT)] if self._review else [self.review()]

    def _runs(self) -> list[Operation | None]:
        """What gets the next run going: unpausing a DAG with a schedule, else starting a run, which unpauses it too."""
        unpause = self.unpause()
        if self._table.scheduled:
            return [unpause or self.run_now()]
        return [self.run_now(), unpause]

    def _next_run(self) -> Operation | None:
        """What a decision that the next run carries out goes on with; None if the viewer may do neither."""
        return next(filter(None, self._runs()), None)

    def unpause(self) -> Operation | None:
        """Unpause the DAG that ingests the table; None if it is not paused."""
        if not self._table.paused or not self._rights.edit(self._ingest):
            return None
        text = f"Runs of its schedule start again, for all tables of group {self._table.group}."
        if not self._table.scheduled:
            text = "It has no schedule: it runs when somebody starts a run."
        return Operation(
            self._name,
            self._ingest,
            "Unpause…",
            f"Unpause {self._ingest}",
            [text],
            "Unpause",
            method="PATCH",
            path=f"/api/v2/dags/{_quote(self._ingest)}?update_mask=is_paused",
            body={"is_paused": False},
            then=self.run_now(),
        )

    def run_now(self) -> Operation | None:
        """Start a run of the table's group."""
        text = f"The run reads what is new for all tables of group {self._table.group}, and tries again what failed."
        title = f"Run now: {self._ingest}"
        return self._start(
            Operation(self._name, self._ingest, "Run now…", title, [text], "Run now", run="run", fields=[NOTE])
        )

    def publish_blocked(self) -> Operation | None:
        """Publish the blocked batches once, as they are."""
        text = (
            "The next run publishes the blocked batch. Its bad records stay quarantined. Later batches are "
            "blocked as before."
        )
        return self._start(
            Operation(
                self._name,
                dag_ids.PUBLISH_BLOCKED,
                "Publish anyway…",
                f"Publish the blocked batch of {self._name}",
                [text],
                "Publish anyway",
                conf={"table": self._name},
                fields=[WHY],
                dry_run=True,
                run="publish_blocked",
                outcome="The batch is not in the table yet: the next run publishes it.",
                then=self._next_run(),
            )
        )

    def replay(self, detail: TableDetail, topic: str, ranges: Mapping[str, Sequence[int]]) -> Operation | None:
        """Replay quarantined records of a topic.

        Args:
            ranges: `{partition: [start, end)}`; empty: all quarantined records of the topic.
        """
        text = (
            "The records are decoded again by the active contract. Those that fit it now are published; the others "
            "stay quarantined. Committed offsets do not change."
        )
        source = QUARANTINE if detail.keeps_raw else STAGING
        return self._start(
            Operation(
                self._name,
                dag_ids.BACKFILL,
                "Replay…" if ranges else "Replay all…",
                f"Replay quarantined records of {self._name}",
                [text],
                "Replay",
                conf={**self._backfill_form(), "source": source, "topic": topic, "ranges": ranges},
                fields=[WHY],
                dry_run=True,
                run="replay",
            )
        )

    def replay_all(self, detail: TableDetail) -> list[Operation]:
        """Replay all quarantined records, an operation per topic."""
        topics = dict.fromkeys(
            topic for group in detail.quarantine.groups if not group.waiting for topic in group.ranges
        )
        # Only the quarantine itself knows where its records are: all of staging would be every record.
        found = [self.replay(detail, topic, {}) for topic in topics] if detail.keeps_raw else []
        return [each for each in found if each]

    def backfill(self) -> Operation | None:
        """Read a range again."""
        text = (
            "The records of the range are read again and replace the rows that they made. Committed offsets do not "
            "change, and live ingest continues."
        )
        topics = [each.topic for each in self._table.topics]
        fields = [
            *([Field("topic", "Topic", "choice", topics[0], topics)] if len(topics) > 1 else []),
            Field("source", "Read from", "choice", KAFKA, SOURCES),
            Field("since", "From (UTC)", "time", hint="Default: the first offset that there is."),
            Field("until", "Until (UTC)", "time", hint="Default: the first offset of live ingest."),
            Field("ranges", "Or offsets", "ranges", hint='Per partition, first and end: {"0": [100, 5000]}'),
            WHY,
        ]
        return self._start(
            Operation(
                self._name,
                dag_ids.BACKFILL,
                "Backfill…",
                f"Backfill {self._name}",
                [text],
                "Backfill",
                conf=self._backfill_form(),
                fields=fields,
                dry_run=True,
                run="backfill",
            )
        )

    def roll_back(self, run_id: str | None) -> Operation | None:
        """Undo a run's commits on the table, and all commits since; None without a run."""
        if not run_id:
            return None
        text = (
            f"The rollback undoes run {run_id} and everything after it in {self._name}: data and offsets, in one "
            "commit. The next run publishes the batches again from staging."
        )
        hint = "Leave it empty, unless the dry run above shows LOST: then enter the name of the table."
        return self._start(
            Operation(
                self._name,
                dag_ids.ROLLBACK,
                "Roll back to before this run…",
                f"Roll back {self._name}",
                [text],
                "Roll back",
                conf={"table": self._name, "snapshot_id": None, "before_run": run_id, "accept_loss": ""},
                fields=[WHY, Field("accept_loss", "Accept the loss", hint=hint)],
                dry_run=True,
                run="rollback",
                outcome="The next run publishes the batches that the dry run marks.",
                then=self._next_run(),
            )
        )

    def accept_gap(self) -> Operation | None:
        """Skip offsets permanently that Kafka or staging has lost."""
        text = "Lost offsets are skipped permanently: their records will be missing. The topic continues after them."
        return self._start(
            Operation(
                self._name,
                dag_ids.ACCEPT_GAP,
                "Skip lost offsets…",
                f"Skip lost offsets of {self._name}",
                [text],
                "Skip permanently",
                conf={"name": self._name, "ranges": {}},
                fields=[WHY],
                dry_run=True,
                run="accept_gap",
                outcome="The next run continues after the gap.",
                then=self._next_run(),
            )
        )

    def review(self) -> Operation | None:
        """Start a review of the contract change."""
        return self._start(
            Operation(
                self._name,
                dag_ids.REVIEW_SCHEMA,
                "Review again…" if self._table.schema_state == "rejected" else "Review…",
                f"Review the contract change of {self._name}",
                ["The run waits for an answer. Approve or reject the change on this page once it does."],
                "Start the review",
                conf={"table": self._name},
                dry_run=True,
                run="review",
            )
        )

    def answer(self, option: str) -> Operation | None:
        """Approve or reject the contract change that waits for an answer."""
        if not self._review or not self._rights.answer(dag_ids.REVIEW_SCHEMA):
            return None
        run = f"/api/v2/dags/{_quote(dag_ids.REVIEW_SCHEMA)}/dagRuns/{_quote(self._review)}"
        text = {
            REJECT: "The contract file keeps the change: take it out afterwards, or the table stays in the state "
            '"change rejected". Approving the change takes the rejection back.'
        }
        label = "Republish what was published since the review began, by the new contract"
        return Operation(
            self._name,
            dag_ids.REVIEW_SCHEMA,
            f"{option}…",
            f"{option} the contract change of {self._name}",
            [text[option]] if option in text else [],
            option,
            conf={"table": self._name},
            fields=[*([Field("republish", label, "flag", False)] if option == APPROVE else []), WHY],
            dry_run=True,
            run=self._review,
            method="PATCH",
            path=f"{run}/taskInstances/decide/-1/hitlDetails",
            body={"chosen_options": [option], "params_input": {"why": "", "republish": False}},
            values_in="params_input",
        )

    def maintain(self) -> list[Operation]:
        """Maintain this table now, an operation per action."""
        found = [
            self._start(
                Operation(
                    self._name,
                    dag,
                    f"{title}…",
                    f"{title} of {self._name}",
                    [text],
                    title,
                    conf={"tables": [self._name]},
                    fields=[NOTE],
                    run=dag,
                )
            )
            for dag, title, text in _MAINTENANCE
        ]
        return [each for each in found if each]

    def _backfill_form(self) -> dict[str, Any]:
        return {"table": self._name, "topic": None, "ranges": {}, "since": None, "until": None}

    def _start(self, asked: Operation) -> Operation | None:
        """Complete an operation that starts a run; None if the viewer may not start it."""
        dag, rights = asked.dag, self._rights
        if not rights.start(dag):
            return None
        paused = self._table.paused if dag == self._ingest else rights.paused.get(dag, False)
        may_unpause = rights.edit(dag)
        then = "it is unpaused first" if may_unpause else "the run waits until somebody unpauses it"
        # The default of these forms is a dry run.
        real = {"dry_run": False} if WHY in asked.fields else {}
        return replace(
            asked,
            text=[*asked.text, *([f"DAG {dag} is paused: {then}."] if paused else [])],
            run=f"{asked.run}__{_NOT_IN_A_RUN_ID.sub('-', self._name)}",
            unpause=paused and may_unpause,
            path=f"/api/v2/dags/{_quote(dag)}/dagRuns",
            body={"logical_date": None, "conf": {**asked.conf, **real}, "note": asked.title},
            values_in="conf" if WHY in asked.fields else "",
        )


_MAINTENANCE = (
    (dag_ids.REWRITE_FILES, "Rewrite data files", "Small data files are written again as larger ones."),
    (dag_ids.EXPIRE_SNAPSHOTS, "Expire snapshots", "Snapshots beyond the limits of the contract are removed."),
    (dag_ids.REMOVE_ORPHANS, "Remove orphan files", "Files that no snapshot has are removed."),
)
"""DAG, title and what it does."""


def _quote(name: str) -> str:
    return quote(name, safe="")
