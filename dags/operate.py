"""What an operator does by hand, one DAG each: `accept_gap` and `rollback`. A dry run, the default, only shows it.

Each is one task without retries: whoever started it reads the log and decides. The work itself is in the package.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.sdk import Param, task
from airflow.sdk.exceptions import AirflowFailException
from sluice_airflow.connections import errors_in_words, kafka_client, open_lake, use_registry
from sluice_airflow.forms import UNCHANGED, by_hand, ranges, who

from sluice.operate import operator_input

log = logging.getLogger(__name__)


def number(text: Any) -> int | None:
    """A snapshot's number. A browser rounds such great integers, so text is taken as well."""
    if text in (None, ""):
        return None
    try:
        return int(text)
    except ValueError as error:
        raise AirflowFailException(f"{text!r} is no snapshot: it is a number, see `<table>.snapshots`.") from error


with by_hand(
    "accept_gap",
    "Gives up offsets that Kafka lost before they were read, by name and for good. The topic then goes on behind them; "
    "the ledger keeps who did it and why.",
    name=Param(type="string", minLength=1, description="A table or a topic; what both are called means the table."),
    ranges=ranges('Exactly what is lost, as {"0": [first, end]}; empty: what planning names at this moment.'),
):

    @task
    def accept_gap(*, params: Any = None, dag_run: Any = None, run_id: Any = None) -> None:
        """Show the lost offsets, and give them up unless this is a dry run."""
        from sluice.operate import accept_gap

        with errors_in_words():
            use_registry()
            client = kafka_client()
            lake, promises = open_lake(client)
            found = accept_gap.accept(
                params["name"],
                operator_input.ranges(params["ranges"]),
                promises,
                lake,
                client,
                who=who(dag_run),
                why=params["why"],
                run_id=run_id,
                dry_run=params["dry_run"],
            )
        for gap in found:
            log.warning("%s: %s", "would be given up for good" if params["dry_run"] else "given up", gap)
        log.info("%s", UNCHANGED if params["dry_run"] else "The next run goes on behind it.")

    accept_gap()


with by_hand(
    "rollback",
    "Takes a typed table back to a snapshot of its own, and its offsets with it, in one commit. What came after is "
    "shown first; the next run publishes it again from staging. The ledger keeps who did it and why.",
    table=Param(type="string", minLength=1, description="The typed table."),
    snapshot_id=Param(None, type=["null", "string", "integer"], description="The snapshot to go back to: its number."),
    before_run=Param(None, type=["null", "string"], description="Or: the run that is the first to be undone."),
    accept_loss=Param(
        "",
        type="string",
        description="The table's name once more, if batches that staging no longer holds may be lost for it.",
    ),
):

    @task
    def rollback(*, params: Any = None, dag_run: Any = None, run_id: Any = None) -> None:
        """Show what would be undone and published again, and do it unless this is a dry run."""
        from sluice.ledger.offsets_table import Ledger
        from sluice.operate import rollback as back

        with errors_in_words():
            lake, promises = open_lake()
            ledger = Ledger(lake)
            found = back.look(
                params["table"],
                promises,
                lake,
                ledger,
                snapshot_id=number(params["snapshot_id"]),
                before_run=params["before_run"] or None,
            )
            for line in found.lines():
                log.warning("%s", line)
            if not params["dry_run"]:
                back.roll_back(
                    found,
                    lake,
                    ledger,
                    who=who(dag_run),
                    why=params["why"],
                    run_id=run_id,
                    accept_loss=params["accept_loss"],
                )
        log.info("%s", UNCHANGED if params["dry_run"] else "The next run publishes again what is marked so.")

    rollback()
