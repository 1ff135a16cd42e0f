"""One stack with a real Airflow for all tests here, started once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from sluice.embedded import stack as stacks
from sluice.embedded.env import load_env
from sluice.embedded.home import REPOSITORY, Home
from sluice.embedded.process import end
from sluice.embedded.state import load as load_state
from tests.support.mailbox import Mailbox
from tests.support.running import CONTRACT, GROUPS, MAIL, MANY, MORE, OWN, Stack


@pytest.fixture(scope="package")
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as running:
        yield running


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory, mailbox: Mailbox) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("airflow")
    contracts = folder / "contracts"
    contracts.mkdir()
    for group, names in GROUPS.items():
        for name in names:
            text = OWN.get(name, CONTRACT).format(table=name, topic=name, group=group)
            (contracts / f"{name}.yaml").write_text(text + MORE.get(name, ""))
    text = CONTRACT.format(table="mixed.{topic}", topic='{pattern: "many-.*"}', group="mixed")
    (contracts / "many.yaml").write_text(text)
    (contracts / "groups.yaml").write_text(
        "defaults: {schedule: null, retries: 1, retry_delay: 2s}\n"
        "kept: {maintenance: {seconds_per_turn: 1}}\n"
        "maintenance: {rewrite_data_files: null, expire_snapshots: null, remove_orphan_files: null}\n"
        f"alerts: {{schedule: null, states: [blocked], notifiers: [{json.dumps(MAIL)}]}}\n"
    )
    home = Home.at(folder / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_HOME", str(home.root))
        patch.setenv("SLUICE_CONTRACTS", str(contracts))
        plain = {"disable_ssl": True, "disable_tls": True}
        server = {"conn_type": "smtp", "host": "127.0.0.1", "port": mailbox.port, "extra": plain}
        patch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(server))
        try:
            # A process of its own: the services outlive it, and are not this process's children.
            subprocess.run([sys.executable, "-m", "sluice.embedded", "up"], env=command_env(), check=True, timeout=300)
            env = load_env(home.root)
            client = AdminClient({"bootstrap.servers": env["KAFKA_BOOTSTRAP_SERVERS"]})
            names = [name for group in (*GROUPS.values(), MANY) for name in group]
            for future in client.create_topics([NewTopic(name, 2, 1) for name in names]).values():
                future.result()
            yield Stack(env)
        finally:
            stacks.down(home)
            end([each.process for each in load_state(home).services.values()], load_state(home).mark, grace=5)


def command_env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY / "include")}
