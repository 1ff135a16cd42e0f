"""The DAG `alerts`: looks where the tables stand, and tells whom `groups.yaml` names, once per incident."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseNotifier, Variable, get_current_context, task
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.module_loading import import_string
from sluice_airflow.connections import errors_in_words, kafka_config, use_registry

from sluice.contract import folder as contract_folder
from sluice.contract.groups import Alerts, Notify

if TYPE_CHECKING:
    from sluice.status.incidents import Incident

log = logging.getLogger(__name__)

TOLD = "sluice_incidents"


def told_before() -> list[Incident]:
    """The incidents that were told and are not over, as far as anybody remembers."""
    from sluice.status.incidents import Incident

    try:
        return [Incident(**each) for each in Variable.get(TOLD, default=[], deserialize_json=True)]
    except (TypeError, ValueError) as error:
        log.warning("The variable %s holds no incidents (%s): what is open is told again.", TOLD, error)
        return []


def pages() -> str:
    """The address of the pages, for links in what is told."""
    base = conf.get("api", "base_url", fallback="").rstrip("/")
    if not base:
        log.warning("[api] base_url is not set: the links in what is told have no host, and lead nowhere from a mail.")
    return f"{base}/sluice"


@task(retries=0, execution_timeout=timedelta(minutes=10))
def look() -> None:
    """Tell what is new; red where there is something. Who could not be told is told by the next run, and only they.

    The settings are read here: Airflow renders the templates in arguments, before there is an incident.
    """
    from sluice.status import incidents, status

    promises = contract_folder.load(strict=False)
    alerts = promises.common.alerts or Alerts()
    with errors_in_words():
        use_registry()
        found = status.look(promises, kafka=kafka_config())
    needs_a_person = incidents.of_status(found, alerts, pages())
    new, goes_on, over = incidents.compare(needs_a_person, told_before(), found)
    for each in over:
        log.info("over: %s", each.title)
    for each in goes_on:
        log.info("goes on: %s", each.title)
    for each in new:
        log.error("%s", each.text)
    whom = {_name(to): to for to in alerts.notifiers}
    to_tell = [replace(each, unheard=tuple(whom)) for each in new] + [each for each in goes_on if each.unheard]
    kept = [each for each in goes_on if not each.unheard] + to_tell
    silent: set[str] = set()  # who fails once may hang again, until this task's time is up
    for number, incident in enumerate(kept):
        for name in incident.unheard:
            if name in silent:
                continue
            if name in whom and not _tell(whom[name], incident):
                silent.add(name)
                continue
            kept[number] = replace(kept[number], unheard=[n for n in kept[number].unheard if n != name])
            # At once: whoever was told is not told again, should another one never come to an end.
            Variable.set(TOLD, [asdict(each) for each in kept], serialize_json=True)
    Variable.set(TOLD, [asdict(each) for each in kept], serialize_json=True)
    if to_tell:
        raise AirflowFailException(f"New: {'; '.join(each.title for each in to_tell)}. The log has what to do.")


def _name(settings: Notify) -> str:
    """What tells notifiers apart, in whatever order they stand."""
    arguments = json.dumps(settings.arguments, sort_keys=True, default=str)
    return f"{settings.notifier} {hashlib.sha256(arguments.encode()).hexdigest()[:8]}"


def _tell(settings: Notify, incident: Incident) -> bool:
    """Whether a notifier took it: what keeps one from telling must keep no other from it."""
    context: Any = {**get_current_context(), "incident": incident}
    try:
        made = import_string(settings.notifier)(**settings.arguments)
        if not isinstance(made, BaseNotifier):
            raise TypeError("It is no notifier of Airflow's: correct alerts in groups.yaml.")
        made.render_template_fields(context)
        made.notify(context)
    except Exception:
        log.exception("%s could not be told by %s; the next run tries again", incident.title, settings.notifier)
        return False
    return True


def build(alerts: Alerts) -> DAG:
    """The DAG."""
    with DAG(
        dag_id="alerts",
        schedule=alerts.schedule,
        catchup=False,
        max_active_runs=1,
        tags=["sluice"],
        doc_md="Looks where the tables stand and tells whom `groups.yaml` names under `alerts`, once per incident. A "
        "run is red when something new needs a person, green while nothing new does.",
    ) as dag:
        look()
    return dag


_alerts = contract_folder.load(strict=False).common.alerts
if _alerts:  # also where no contract can be read: then that is what it tells
    alerts_dag = build(_alerts)
