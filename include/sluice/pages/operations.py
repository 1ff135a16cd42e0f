"""The values behind a button of a page: the request to Airflow's own API that it sends, and what its dialog asks for.

`operations.js` opens the dialog and sends the request with the viewer's own session: Airflow decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Field:
    """A field of a dialog; its value goes into the form under `name`.

    Attributes:
        kind: `text`, `area` (several lines), `ranges` (JSON), `time` (UTC), `choice` or `flag`.
        options: of a choice.
        hint: what may be entered.
    """

    name: str
    label: str
    kind: str = "text"
    value: Any = ""
    options: Sequence[str] = ()
    required: bool = False
    hint: str = ""


@dataclass(frozen=True)
class Operation:
    """A button, and its dialog.

    Attributes:
        table: the table's name.
        dag: the DAG that runs, or whose run is answered.
        label: the button's text; `submit`: that of the button in the dialog which sends the request.
        title: the dialog's heading; `text`: what happens, a paragraph each.
        conf: the form of the run, which the dry run reads.
        fields: what the viewer fills in; the values go into `conf`.
        dry_run: whether the dialog shows what the run would do.
        run: the id of the run that is answered; of one that starts, the beginning.
        unpause: whether the DAG is unpaused first, because a run of a paused DAG would wait.
        method, path, body: the request to Airflow's API; the path is below Airflow's address.
        values_in: the object in the body that takes the values of the fields; empty: none does.
        outcome: what has changed once the run has succeeded, where the button may promise more.
        then: what the dialog offers afterwards, because only the next run shows the effect.
    """

    table: str
    dag: str
    label: str
    title: str
    text: Sequence[str]
    submit: str
    conf: Mapping[str, Any] = field(default_factory=dict)
    fields: Sequence[Field] = ()
    dry_run: bool = False
    run: str = ""
    unpause: bool = False
    method: str = "POST"
    path: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    values_in: str = ""
    outcome: str = ""
    then: Operation | None = None

    def as_json(self) -> dict[str, Any]:
        """All attributes, for the page's script."""
        return asdict(self)


def _never(_: str) -> bool:
    return False


@dataclass(frozen=True)
class Rights:
    """What a viewer may do in Airflow, by DAG, and what Airflow knows of the DAGs. Default: nothing.

    Attributes:
        start: whether the viewer may trigger the DAG.
        edit: whether the viewer may pause and unpause it.
        answer: whether the viewer may answer its tasks that wait for a person.
        paused: whether the DAG of an operator or of maintenance is paused; without DAGs that Airflow does not know.
    """

    start: Callable[[str], bool] = _never
    edit: Callable[[str], bool] = _never
    answer: Callable[[str], bool] = _never
    paused: Mapping[str, bool] = field(default_factory=dict)
