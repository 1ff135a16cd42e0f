"""Builds Sluice's DAGs.

A DAG file of an Airflow that Sluice is installed in needs two lines: `from sluice_airflow import dags` and
`dags.build(globals(), contracts="/path/to/contracts")`. In a checkout, each file of `dags/` calls `build_part`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypedDict, Unpack

from airflow.sdk import get_parsing_context

from sluice import dag_ids
from sluice.contract import folder as contract_folder
from sluice.errors import ConfigError
from sluice_airflow.dag_options import DagOptions
from sluice_airflow.services import SparkService

PARTS = (
    "ingest",
    "maintain",
    "backfill",
    "operate",
    "review_schema",
    "alerts",
    "compare",
    "doctor",
    "rehearse",
    "watch",
)
"""The modules of this package; each makes DAGs from the contracts."""
_OPERATE = (dag_ids.ACCEPT_GAP, dag_ids.PUBLISH_BLOCKED, dag_ids.ROLLBACK)


class BuildOptions(TypedDict, total=False):
    """Options of `build`.

    Attributes:
        owner: Airflow owner of tasks that no contract has an owner for.
        tags: Tags of each DAG beside Sluice's own.
        service: What submits Spark applications instead of spark-submit, see `sluice_airflow.services`.
    """

    owner: str | None
    tags: Iterable[str]
    service: SparkService | None


def build(
    namespace: MutableMapping[str, Any],
    *,
    contracts: str | os.PathLike[str] | None = None,
    prefix: str | None = None,
    **options: Unpack[BuildOptions],
) -> None:
    """Add all of Sluice's DAGs to a DAG file. Broken contracts are skipped: `check` shows them as an import error.

    Args:
        namespace: `globals()` of the DAG file.
        contracts: Folder of contracts; a relative one is beside the DAG file. Default: `SLUICE_CONTRACTS`.
        prefix: Prefix of the DAG ids. Default: `SLUICE_DAG_PREFIX`, or without it `sluice_` for an installed package.
        options: See `BuildOptions`.

    Raises:
        ConfigError: `contracts` or `prefix` differs from the setting that the other parts of Airflow read, or the
            folder does not exist.
    """
    _use_contracts(namespace, contracts)
    if prefix is not None and prefix != dag_ids.PREFIX:
        raise ConfigError(
            f"prefix={prefix!r} is not the prefix of Sluice's pages, messages and commands, {dag_ids.PREFIX!r}.",
            next_step=f"Set {dag_ids.PREFIX_VARIABLE}={prefix} in the environment of each part of Airflow and of the "
            "command line.",
        )
    folder = contract_folder.default_folder()
    if not folder.is_dir():
        raise ConfigError(
            f"The folder of contracts {folder} does not exist.",
            next_step="Create it, or name another: as `contracts` of dags.build(), and by "
            f"{contract_folder.FOLDER_VARIABLE}.",
        )
    made = DagOptions(options.get("owner"), tuple(options.get("tags", ())), options.get("service"))
    for part in _needed_parts():
        build_part(namespace, part, made)


def build_part(namespace: MutableMapping[str, Any], part: str, options: DagOptions | None = None) -> None:
    """Add the DAGs of one of `PARTS` to a DAG file. Broken contracts are skipped."""
    contracts = contract_folder.load_contracts(strict=False)
    for dag in import_module(f"{__name__}.{part}").build(contracts, options or DagOptions()):
        namespace[dag.dag_id] = dag


def check(namespace: MutableMapping[str, Any], *, contracts: str | os.PathLike[str] | None = None) -> None:
    """Show errors in the contracts as an import error in Airflow; makes no DAG, so it gets a DAG file of its own.

    Raises:
        ConfigError: `contracts` differs from `SLUICE_CONTRACTS`.
        ContractError: All problems, one per line.
    """
    _use_contracts(namespace, contracts)
    contract_folder.load_contracts()


def _use_contracts(namespace: MutableMapping[str, Any], contracts: str | os.PathLike[str] | None) -> None:
    """Set the folder for this process: a DAG processor's, or that of a task and its Spark driver."""
    if contracts is None:
        return
    variable = contract_folder.FOLDER_VARIABLE
    given = (Path(str(namespace["__file__"])).parent / Path(contracts).expanduser()).resolve()
    named = os.environ.get(variable)
    if named and Path(named).expanduser().resolve() != given:
        raise ConfigError(
            f"contracts={str(given)!r} is not the folder in {variable}, {named!r}.",
            next_step=f"Set {variable}={given} in the environment of each part of Airflow and of the command line.",
        )
    os.environ[variable] = str(given)


def _needed_parts() -> Iterable[str]:
    """All parts; in a task's process, the one with the task's DAG, because each task waits for its DAG file."""
    wanted = get_parsing_context().dag_id
    if wanted is None:
        return PARTS
    if not wanted.startswith(dag_ids.PREFIX):
        return ()
    name = "operate" if wanted in _OPERATE else wanted.removeprefix(dag_ids.PREFIX)
    return [part for part in PARTS if name == part or name.startswith(f"{part}_")]
