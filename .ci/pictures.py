"""Renews docs/pictures from a real stack that has a day of batches, and takes pictures of the pages in Chromium.

`PYTHONPATH=include:. .venv/bin/python .ci/pictures.py`

It takes a quarter of an hour: each round runs with a clock that is behind, the first by a day (`earlier_clock.c`,
compiled with cc). At the end one table is blocked, one is stale, and one has a contract change under review.
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
ROUNDS = 36
ROUND_S = 24 * 3600 // ROUNDS
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
    "web.clicks": """\
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
TARGETS = {"shop": "1h", "crm": "6h", "web": "1h"}


def write_contracts(folder: Path) -> None:
    """One contract per table; a topic has its table's name."""
    folder.mkdir()
    for table, text in CONTRACTS.items():
        group = table.partition(".")[0]
        head = f"table: {table}\ntopic: {table}\nowner: team-{group}\nfreshness: {TARGETS[group]}\n"
        (folder / f"{table}.yaml").write_text(head + text)
    (folder / "groups.yaml").write_text("defaults: {schedule: null}\n")


def send(bootstrap: str, chance: random.Random, turn: int, now: float) -> None:
    """The records of a round: more by day than by night, some of them bad; in the last round most payments are.

    Args:
        bootstrap: The broker.
        chance: The source of the values.
        turn: Which round it is.
        now: The round's time in seconds since the epoch. The records are of the time since the round before.
    """
    producer = Producer({"bootstrap.servers": bootstrap})

    def produce(topic: str, value: Mapping[str, Any], key: object = None) -> None:
        key_bytes = None if key is None else str(key).encode()
        timestamp = int((now - chance.random() * min(ROUND_S, time.time() - now + 60)) * 1000)
        producer.produce(topic, json.dumps(value).encode(), key_bytes, timestamp=timestamp)

    share = 1 + 0.6 * math.sin(turn / ROUNDS * 2 * math.pi) + chance.random() * 0.3
    for _ in range(int(4000 * share)):
        order = {"customer": f"c{chance.randrange(900)}", "country": chance.choice(["DE", "FR", "IT", "ES"])}
        if turn % 9 == 5 and chance.random() < 0.05:
            order["country"] = "de"
        total: object = round(chance.uniform(5, 110), 2) if chance.random() > 0.002 else -1
        produce("shop.orders", {**order, "total": total}, chance.randrange(60_000))
    for _ in range(int(9000 * share)):
        produce("web.clicks", {"page": f"/p/{chance.randrange(50)}", "visitor": chance.randrange(10_000)})
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


def compile_clock(folder: Path) -> str:
    """Return the path of the library that shows a program an earlier time."""
    library = str(folder / "earlier_clock.so")
    source = Path(__file__).with_name("earlier_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
    return library


def fill(env: Mapping[str, str], command_env: dict[str, str]) -> None:
    """Run the groups round by round through a day, and `crm` in its first half only; then block and change tables."""
    clock_library = compile_clock(Path(env["SLUICE_HOME"]))
    bootstrap, chance = env["KAFKA_BOOTSTRAP_SERVERS"], random.Random(7)  # noqa: S311
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in CONTRACTS]).values():
        future.result(30)
    for turn in range(ROUNDS - 1):
        ago = (ROUNDS - 1 - turn) * ROUND_S
        send(bootstrap, chance, turn, time.time() - ago)
        clock = {"LD_PRELOAD": clock_library, "EARLIER_S": str(ago)}
        for group in ("shop", "web", "crm") if turn < ROUNDS // 2 and turn % 6 == 0 else ("shop", "web"):
            command = [sys.executable, "-m", "sluice", "run", group]
            subprocess.run(command, env={**command_env, **clock}, check=False, stdout=subprocess.DEVNULL)
        print(f"round {turn + 1} of {ROUNDS}", flush=True)
    send(bootstrap, chance, ROUNDS - 1, time.time())
    changed = Path(command_env["SLUICE_CONTRACTS"], "web.clicks.yaml")
    changed.write_text(changed.read_text().replace("name: visitor, type: long", "name: country, type: string"))
    airflow = AirflowClient(env)
    airflow.pause("review_schema", False)
    for group, table in (("shop", "shop.payments"), ("web", "web.clicks")):
        airflow.wait_for_dag(f"ingest_{group}", tables={table})
        airflow.pause(f"ingest_{group}", False)
        run = airflow.trigger(f"ingest_{group}")
        while airflow.run_state(f"ingest_{group}", run) in ("queued", "running"):
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
                frame.locator("dialog .dry-run").filter(has_text="shop.payments").wait_for()
                shoot("dialog")
                page.goto(f"{url}/sluice/tables/shop.orders?hours=24")
                page.locator(".plot canvas").first.wait_for()
                shoot("table", whole=True)
                page.goto(f"{url}/sluice/quality?q=shop.orders")
                page.locator(".matrix").first.wait_for()
                shoot("quality")
                page.goto(f"{url}/sluice/timeline?hours=24")
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
