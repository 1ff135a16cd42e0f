"""(i) Fifty viewers of Sluice's pages: the pages' response times, and whether they slow down the scheduler."""

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
PAUSE_S = 10.0  # an open page reloads after 30 s
PATHS = ("/tables", f"/tables/{trigger.TABLE}", "/quality", "/timeline", f"/tables/{trigger.TABLE}/timeline")


@dataclass
class Responses:
    """The responses to all viewers: seconds of each, and failures."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def measure(lab: Lab, *, quick: bool, records: int | None) -> None:  # noqa: ARG001
    """Run the DAG of section c without viewers, then repeatedly beside them."""
    minutes = 1.0 if quick else MINUTES
    say(f"\n(i) {VIEWERS} viewers for {minutes:.0f} minutes, each asks for a page every {PAUSE_S:.0f} s")
    with trigger.stack(lab) as run:
        trigger.header()
        run()  # warms up
        without_viewers = [run() for _ in range(2 if quick else 3)]
        token = AirflowClient(dict(os.environ)).token
        responses, over = Responses(), threading.Event()
        viewers = [
            threading.Thread(target=_view_pages, args=(n, token, responses, over), daemon=True) for n in range(VIEWERS)
        ]
        for viewer in viewers:
            viewer.start()
        say("    with the viewers:")
        until, with_viewers = time.monotonic() + 60 * minutes, []
        while time.monotonic() < until:
            with_viewers.append(run())
        over.set()
        for viewer in viewers:
            viewer.join(60)
    if responses.failures:
        raise SystemExit(
            f"{len(responses.failures)} of {len(responses.seconds)} requests failed: {responses.failures[0]}"
        )
    for name in ("Airflow", "until the run ended"):
        was, now = (statistics.median(each[name] for each in runs) for runs in (without_viewers, with_viewers))
        say(f"    {name}, median: {was:.1f} s without, {now:.1f} s with viewers ({now / was:.2f} x)")
    cuts = statistics.quantiles(responses.seconds, n=100)
    say(
        f"    {len(responses.seconds):,} pages: "
        f"median {cuts[49]:.2f} s, 95 % within {cuts[94]:.2f} s, 99 % {cuts[98]:.2f} s"
    )


def _view_pages(number: int, token: str, responses: Responses, over: threading.Event) -> None:
    """Request the pages in turn, as one viewer; each viewer starts at another time and page."""
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
                responses.failures.append(f"{answer.url}: {answer.status_code}")
        except requests.RequestException as error:
            responses.failures.append(str(error))
        responses.seconds.append(time.monotonic() - began)
        number += 1
        over.wait(PAUSE_S)
