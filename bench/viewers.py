"""(i) Fifty viewers of Sluice's pages: how long the pages take, and whether the scheduler is slower for it."""

from __future__ import annotations

import os
import statistics
import threading
import time
from dataclasses import dataclass, field

import requests

from bench import trigger
from bench.lab import Lab, say
from sluice.demo.api import AirflowClient

VIEWERS, MINUTES = 50, 5.0
PAUSE_S = 10.0  # an open page looks again after 30 s
PATHS = ("/tables", f"/tables/{trigger.TABLE}", "/quality", "/timeline", f"/tables/{trigger.TABLE}/timeline")


@dataclass
class Told:
    """Of all viewers: seconds per answer, and what was no answer."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:  # noqa: ARG001
    """Run the DAG of section c without viewers, and on and on beside them."""
    minutes = 1.0 if quick else MINUTES
    say(f"\n(i) {VIEWERS} viewers for {minutes:.0f} minutes, each asks for a page every {PAUSE_S:.0f} s")
    with trigger.stack(lab) as run:
        trigger.header()
        run()  # warms up
        alone = [run() for _ in range(2 if quick else 3)]
        token = AirflowClient(dict(os.environ)).token
        told, over = Told(), threading.Event()
        viewers = [threading.Thread(target=_look, args=(n, token, told, over), daemon=True) for n in range(VIEWERS)]
        for viewer in viewers:
            viewer.start()
        say("    with the viewers:")
        until, beside = time.monotonic() + 60 * minutes, []
        while time.monotonic() < until:
            beside.append(run())
        over.set()
        for viewer in viewers:
            viewer.join(60)
    if told.failures:
        raise SystemExit(f"{len(told.failures)} answers of {len(told.seconds)} were none: {told.failures[0]}")
    for name in ("Airflow", "until the run ended"):
        was, now = (statistics.median(each[name] for each in runs) for runs in (alone, beside))
        say(f"    {name}, median: {was:.1f} s without, {now:.1f} s with viewers ({now / was:.2f} x)")
    cuts = statistics.quantiles(told.seconds, n=100)
    say(
        f"    {len(told.seconds):,} pages: median {cuts[49]:.2f} s, 95 % within {cuts[94]:.2f} s, 99 % {cuts[98]:.2f} s"
    )


def _look(number: int, token: str, told: Told, over: threading.Event) -> None:
    """One viewer: the pages in turn, each viewer beginning at another moment and page."""
    session = requests.Session()
    session.trust_env = False
    base = os.environ["SLUICE_PAGES_URL"]
    session.headers["Authorization"] = f"Bearer {token}"
    over.wait(PAUSE_S * number / VIEWERS)
    while not over.is_set():
        began = time.monotonic()
        try:
            answer = session.get(f"{base}/sluice{PATHS[number % len(PATHS)]}", timeout=60)
            if answer.status_code != 200:
                told.failures.append(f"{answer.url}: {answer.status_code}")
        except requests.RequestException as error:
            told.failures.append(str(error))
        told.seconds.append(time.monotonic() - began)
        number += 1
        over.wait(PAUSE_S)
