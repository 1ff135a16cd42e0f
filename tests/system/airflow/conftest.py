"""Fixtures: one embedded stack with Airflow for all tests in this folder, and a mail server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from sluice.embedded import stack as stacks
from sluice.embedded.env import load_env
from sluice.embedded.home import REPOSITORY, Home, cache_folder
from sluice.embedded.private_files import private_folder, write_private
from sluice.embedded.process import stop_services
from sluice.embedded.state import load_state
from tests.support import read_only
from tests.support.airflow_stack import (
    CONTRACT,
    CONTRACT_BY_TABLE,
    EXTRA_YAML,
    GROUPS,
    MAIL_NOTIFIER,
    PATTERN_TOPICS,
    AirflowStack,
)
from tests.support.services.mailbox import Mailbox
from tests.support.services.postgres import Postgres, find_binaries


@pytest.fixture(scope="package")
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as running:
        yield running


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory, mailbox: Mailbox) -> Iterator[AirflowStack]:
    folder = tmp_path_factory.mktemp("airflow")
    contracts = folder / "contracts"
    contracts.mkdir()
    for group, names in GROUPS.items():
        for name in names:
            text = CONTRACT_BY_TABLE.get(name, CONTRACT).format(table=name, topic=name, group=group)
            (contracts / f"{name}.yaml").write_text(text + EXTRA_YAML.get(name, ""))
    text = CONTRACT.format(table="mixed.{topic}", topic='{pattern: "many-.*"}', group="mixed")
    (contracts / "many.yaml").write_text(text)
    (contracts / "groups.yaml").write_text(
        "defaults: {schedule: null, retries: 1, retry_delay: 2s}\n"
        "kept: {maintenance: {seconds_per_turn: 1}}\n"
        "prompt: {schedule: on_data, on_data: {min_records: 50, max_wait: 5s}}\n"
        "steady: {schedule: continuous, continuous: {every: 2s}, maintenance: {seconds_per_turn: 1}}\n"
        "maintenance: {rewrite_data_files: null, expire_snapshots: null, remove_orphan_files: null}\n"
        f"alerts: {{schedule: null, states: [blocked], notifiers: [{json.dumps(MAIL_NOTIFIER)}]}}\n"
    )
    home = Home.at(folder / "home")
    with pytest.MonkeyPatch.context() as patch, metadata_database(home) as database:
        patch.setenv("SLUICE_HOME", str(home.root))
        patch.setenv("SLUICE_CONTRACTS", str(contracts))
        plain = {"disable_ssl": True, "disable_tls": True}
        server = {"conn_type": "smtp", "host": "127.0.0.1", "port": mailbox.port, "extra": plain}
        patch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(server))
        try:
            # In another process, so that the services are not children of the test process.
            up = [sys.executable, "-m", "sluice.embedded", "up"]
            if read_only.is_possible():  # as in a container: what Sluice writes is where settings say, or temporary
                up = read_only.command([home.root, cache_folder(), Path(tempfile.gettempdir())], up)
            subprocess.run(up, env=command_env(), check=True, timeout=300)
            env = load_env(home.root)
            client = AdminClient({"bootstrap.servers": env["KAFKA_BOOTSTRAP_SERVERS"]})
            names = [name for group in (*GROUPS.values(), PATTERN_TOPICS) for name in group]
            for future in client.create_topics([NewTopic(name, 2, 1) for name in names]).values():
                future.result()
            yield AirflowStack(env, database)
        finally:
            stacks.down(home)
            stop_services([each.process for each in load_state(home).services.values()], load_state(home).mark, grace=5)


@contextmanager
def metadata_database(home: Home) -> Iterator[Postgres | None]:
    """PostgreSQL for Airflow, named by its configuration file, which nobody overrides; SQLite where it is missing."""
    if find_binaries() is None:
        yield None
        return
    with Postgres() as database:
        # Without asyncpg, which Airflow's pages and tasks don't need, there is no asynchronous connection.
        settings = f"[database]\nsql_alchemy_conn = {database.uri}\nsql_alchemy_conn_async =\n"
        write_private(private_folder(home.airflow) / "airflow.cfg", settings.replace("%", "%%"))
        yield database


def command_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY / "include")}
