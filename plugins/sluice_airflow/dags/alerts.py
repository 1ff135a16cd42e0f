"""The DAG `alerts`: checks the status of all tables and notifies the recipients in `groups.yaml` once per incident."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseNotifier, Variable, get_current_context, task
from airflow.sdk.module_loading import import_string

from sluice import dag_ids
from sluice.contract import folder as contract_folder
from sluice.contract.folder import Contracts
from sluice.contract.groups import AlertSettings, NotifierSettings
from sluice_airflow.connections import export_registry_config, fail_with_message, kafka_config
from sluice_airflow.dag_options import DagOptions
from sluice_airflow.sdk import AirflowFailException, conf

if TYPE_CHECKING:
    from sluice.status.incidents import Incident

log = logging.getLogger(__name__)

INCIDENTS_VARIABLE = "sluice_incidents"


def load_incidents() -> list[Incident]:
    """Load the reported incidents that are not resolved."""
    from sluice.status.incidents import Incident

    try:
        return [Incident(**each) for each in Variable.get(INCIDENTS_VARIABLE, default=[], deserialize_json=True)]
    except (TypeError, ValueError) as error:
        log.warning(
            "The variable %s has no valid incidents (%s): open incidents are reported again.", INCIDENTS_VARIABLE, error
        )
        return []


def pages_url() -> str:
    """The base URL of the pages, for links in messages."""
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    if not base:
        log.warning("[api] base_url is not set: links in messages have no host.")
    return f"{base}/sluice"


@task(retries=0, execution_timeout=timedelta(minutes=10))
def look() -> None:
    """Report new incidents; fails if there are any. The next run retries recipients that could not be notified.

    Settings are read here and not passed as arguments: Airflow would render their templates without an incident.
    """
    from sluice.status import incidents, status

    contracts = contract_folder.load_contracts(strict=False)
    alerts = contracts.common.alerts or AlertSettings()
    with fail_with_message():
        export_registry_config()
        found = status.read_status(contracts, kafka=kafka_config())
    current = incidents.find_incidents(found, alerts, pages_url())
    new, continuing, resolved = incidents.compare_incidents(current, load_incidents(), found)
    for each in resolved:
        log.info("resolved: %s", each.title)
    for each in continuing:
        log.info("continues: %s", each.title)
    for each in new:
        log.error("%s", each.text)
    notifiers = {_notifier_key(each): each for each in alerts.notifiers}
    pending = [replace(each, unheard=tuple(notifiers)) for each in new] + [each for each in continuing if each.unheard]
    open_incidents = [each for each in continuing if not each.unheard] + pending
    failed: set[str] = set()  # a notifier that failed might hang next time, until this task times out
    for number, incident in enumerate(open_incidents):
        unheard = incident.unheard
        for name in incident.unheard:
            if name in failed:
                continue
            if name in notifiers and not _notify(notifiers[name], incident):
                failed.add(name)
                continue
            unheard = tuple(other for other in unheard if other != name)
            open_incidents[number] = replace(incident, unheard=unheard)
            # Store each success at once, in case a later notifier hangs.
            Variable.set(INCIDENTS_VARIABLE, [asdict(each) for each in open_incidents], serialize_json=True)
    Variable.set(INCIDENTS_VARIABLE, [asdict(each) for each in open_incidents], serialize_json=True)
    if pending:
        raise AirflowFailException(f"New: {'; '.join(each.title for each in pending)}. See the log for next steps.")


def _notifier_key(settings: NotifierSettings) -> str:
    """Identifies a notifier, independent of its position in the list."""
    arguments = json.dumps(settings.arguments, sort_keys=True, default=str)
    return f"{settings.notifier} {hashlib.sha256(arguments.encode()).hexdigest()[:8]}"


def _notify(settings: NotifierSettings, incident: Incident) -> bool:
    """Call a notifier, and return whether it succeeded: an error of one must not stop the others."""
    context: Any = {**get_current_context(), "incident": incident}
    try:
        notifier = import_string(settings.notifier)(**settings.arguments)
        if not isinstance(notifier, BaseNotifier):
            raise TypeError("It is not an Airflow notifier. Correct `alerts` in groups.yaml.")
        notifier.render_template_fields(context)
        notifier.notify(context)
    except Exception:
        log.exception("%s could not be sent by %s; the next run retries", incident.title, settings.notifier)
        return False
    return True


def build(contracts: Contracts, options: DagOptions) -> list[DAG]:
    """Build the DAG if alerts are set; also without any readable contract, because that is an incident too."""
    alerts = contracts.common.alerts
    if not alerts:
        return []
    with DAG(
        dag_id=dag_ids.ALERTS,
        dag_display_name=dag_ids.display_name(dag_ids.ALERTS),
        schedule=alerts.schedule,
        catchup=False,
        max_active_runs=1,
        tags=options.tags(),
        default_args=options.owner_argument,
        doc_md="Checks the status of all tables and notifies the recipients of `alerts` in `groups.yaml`, once per "
        "incident. A run fails if there is a new incident.",
    ) as dag:
        look()
    return [dag]
