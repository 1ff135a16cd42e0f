"""Renews docs/pictures from a real stack: runs tables for ten minutes, and takes pictures of the pages in Chromium.

`PYTHONPATH=include:. .venv/bin/python .ci/pictures.py`
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from playwright.sync_api import FrameLocator, Page

from sluice.demo.api import AirflowClient
from sluice.embedded import stack as stacks
from sluice.embedded.env import load_env
from sluice.embedded.home import REPOSITORY, Home
from tests.support.browser import logged_in

PICTURES = REPOSITORY / "docs" / "pictures"
ROUNDS = 24
CONTRACTS = {
    "shop.orders": """\
mode: upsert
identifier: [order_id]
columns:
  - {name: order_id, type: long, source: $key}
  - {name: customer, type: string, required: true}
  - {name: total, type: "decimal(12, 2)"}
  - {name: country, type: string}
expectations:
  - {type: expect_column_values_to_be_between, column: total, min_value: 0, max_value: 10000, severity: quarantine_rows}
  - {type: expect_column_values_to_be_in_set, column: country, value_set: [DE, FR, IT, ES], mostly: 0.98}
  - {type: expect_column_mean_to_be_between, column: total, min_value: 40, max_value: 80}
""",
    "shop.clicks": """\
columns:
  - {name: page, type: string, required: true}
  - {name: visitor, type: long}
""",
    "shop.payments": """\
columns:
  - {name: payment, type: long, required: true}
  - {name: amount, type: "decimal(12, 2)", required: true}
""",
    "crm.customers": """\
mode: upsert
identifier: [id]
columns:
  - {name: id, type: long, source: $key}
  - {name: name, type: string}
""",
}
TARGETS = {"shop": "15m", "crm": "2m"}


def write_contracts(folder: Path) -> None:
    """One contract per table; a topic has its table's name."""
    folder.mkdir()
    for table, text in CONTRACTS.items():
        group = table.partition(".")[0]
        head = f"table: {table}\ntopic: {table}\nowner: team-{group}\nfreshness: {TARGETS[group]}\n"
        (folder / f"{table}.yaml").write_text(head + text)
    (folder / "groups.yaml").write_text("defaults: {schedule: null}\n")


def send(bootstrap: str, chance: random.Random, turn: int) -> None:
    """The records of a round: more by day than by night, some of them bad; in the last round most payments are."""
    producer = Producer({"bootstrap.servers": bootstrap})

    def produce(topic: str, value: Mapping[str, Any], key: object = None) -> None:
        producer.produce(topic, json.dumps(value).encode(), None if key is None else str(key).encode())

    share = 1 + 0.6 * math.sin(turn / ROUNDS * 2 * math.pi) + chance.random() * 0.3
    for _ in range(int(4000 * share)):
        order = {"customer": f"c{chance.randrange(900)}", "country": chance.choice(["DE", "FR", "IT", "ES"])}
        if turn % 9 == 5 and chance.random() < 0.05:
            order["country"] = "de"
        total: object = round(chance.uniform(5, 110), 2) if chance.random() > 0.002 else -1
        produce("shop.orders", {**order, "total": total}, chance.randrange(60_000))
    for _ in range(int(9000 * share)):
        produce("shop.clicks", {"page": f"/p/{chance.randrange(50)}", "visitor": chance.randrange(10_000)})
    for n in range(int(1500 * share)):
        bad = chance.random() < (0.4 if turn == ROUNDS - 1 else 0.002)
        amount: object = "12,50" if bad else round(chance.uniform(5, 110), 2)
        produce("shop.payments", {"payment": turn * 10_000 + n, "amount": amount})
    for _ in range(200):
        produce("crm.customers", {"name": f"n{chance.randrange(900)}"}, chance.randrange(900))
    producer.flush(30)


@contextmanager
def running_stack() -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Yield the stack's environment, and that of a command."""
    with tempfile.TemporaryDirectory() as folder:
        home, contracts = Home.at(Path(folder, "home")), Path(folder, "contracts")
        write_contracts(contracts)
        more = {
            "SLUICE_HOME": str(home.root),
            "SLUICE_CONTRACTS": str(contracts),
            "PYTHONPATH": f"{REPOSITORY}/include",
        }
        try:
            up = [sys.executable, "-m", "sluice.embedded", "up", "--no-registry"]
            subprocess.run(up, env={**os.environ, **more}, check=True)
            env = load_env(home.root)
            yield env, {**os.environ, **env, **more}
        finally:
            stacks.down(home)


def fill(env: Mapping[str, str], command_env: dict[str, str]) -> None:
    """Run the groups round by round. The last run is Airflow's; it blocks the payments, and nobody runs `crm`."""
    bootstrap, chance = env["KAFKA_BOOTSTRAP_SERVERS"], random.Random(7)  # noqa: S311
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in CONTRACTS]).values():
        future.result(30)
    for turn in range(ROUNDS):
        send(bootstrap, chance, turn)
        groups = ["shop"] if turn % 6 else ["shop", "crm"]
        for group in groups if turn < ROUNDS - 1 else []:
            command = [sys.executable, "-m", "sluice", "run", group]
            subprocess.run(command, env=command_env, check=False, stdout=subprocess.DEVNULL)
        print(f"round {turn + 1} of {ROUNDS}", flush=True)
    airflow = AirflowClient(env)
    airflow.wait_for_dag("ingest_shop", tables={"shop.payments"})
    airflow.pause("ingest_shop", False)
    run = airflow.trigger("ingest_shop")
    while airflow.run_state("ingest_shop", run) in ("queued", "running"):
        time.sleep(2)


def in_airflow(page: Page, url: str) -> FrameLocator:
    """Open Sluice's entry in Airflow's navigation."""
    page.goto(f"{url}/plugin/sluice")
    frame = page.frame_locator("iframe")
    frame.locator(".batches a").first.wait_for()
    return frame


def take(env: Mapping[str, str]) -> None:
    """Take the pictures."""
    url = env["SLUICE_PAGES_URL"]
    for scheme in ("light", "dark"):
        with logged_in(env, color_scheme=scheme, viewport={"width": 1280, "height": 800}) as browser:
            page = browser.new_page()

            def shoot(name: str, *, whole: bool = False, page: Page = page) -> None:
                page.wait_for_timeout(1500)  # charts are drawn, and Airflow's own parts have come
                page.screenshot(path=PICTURES / f"{name}.png", full_page=whole)

            frame = in_airflow(page, url)
            if scheme == "light":
                shoot("in-airflow")
                frame.get_by_role("link", name="shop.payments", exact=True).click()
                frame.locator("h1", has_text="shop.payments").wait_for()
                frame.get_by_role("button", name="Publish anyway").click()
                frame.locator(".dry-run").filter(has_text="shop.payments").wait_for()
                shoot("dialog")
                page.goto(f"{url}/sluice/tables/shop.orders?hours=1")
                page.locator(".plot canvas").first.wait_for()
                shoot("table", whole=True)
                page.goto(f"{url}/sluice/quality?q=shop.orders")
                page.locator(".matrix").first.wait_for()
                shoot("quality")
                page.goto(f"{url}/sluice/timeline?hours=1")
                page.locator(".lane").first.wait_for()
                shoot("timeline")
            else:
                frame.get_by_role("link", name="shop.orders", exact=True).click()
                frame.locator(".plot canvas").first.wait_for()
                shoot("in-airflow-dark")


def main() -> None:
    """Start the stack, fill its tables, take the pictures, and stop it."""
    with running_stack() as (env, command_env):
        fill(env, command_env)
        take(env)
    print(f"renewed: {PICTURES}")


if __name__ == "__main__":
    main()
