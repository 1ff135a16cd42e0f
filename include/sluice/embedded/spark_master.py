"""The Spark master that an application is sent to: its address, and whether it answers.

In: the text of `spark.master`. Out: the reason why it can't be used, within seconds; Spark itself tries for a minute.
"""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from sluice.embedded.failure import StackError
from sluice.spark_cluster import STANDALONE, Address, addresses

LOCAL = "local[2]"
VARIABLE = "SLUICE_SPARK_MASTER"
_LOCAL = re.compile(r"local(\[[\d*]+\])?")
SECONDS = 5.0


class DriverPlace(NamedTuple):
    """Where a connection of Airflow has drivers run: its deploy mode, type, host and port."""

    mode: str
    kind: str
    host: str | None
    port: int | None

    @property
    def master(self) -> str:
        """The master that spark-submit gets."""
        return of_connection(self.kind, self.host, self.port)

    def __str__(self) -> str:
        return f"{self.mode} of {self.kind}://{self.host}" if self.mode == "cluster" else self.mode


def of_connection(kind: str, host: str | None, port: int | None) -> str:
    """Return the master that Airflow's Spark provider makes of a connection's type, host and port."""
    named = host or ""
    if kind != "spark" or not named or ("://" not in named and port):
        named = f"{kind}://{named}"
    return f"{named}:{port}" if port else named


def find_problem(master: str) -> str | None:
    """Return why Spark could not reach a standalone master; None if one of its addresses accepts a connection.

    Other masters than `spark://…` are not asked.
    """
    try:
        asked = addresses(master)
    except ValueError as error:
        return str(error)
    with ThreadPoolExecutor(max(len(asked), 1)) as pool:
        problems = list(pool.map(_connect, asked))
    if None in problems or not asked:
        return None
    return f"{master} does not answer: {'; '.join(filter(None, problems))}"


def _connect(address: Address) -> str | None:
    host, port = address
    try:
        socket.create_connection(address, timeout=SECONDS).close()
    except TimeoutError:
        return f"{host}:{port}: no answer within {SECONDS:g} s"
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return None


def check_for_stack(master: str) -> None:
    """Check that the embedded stack can run its applications on a master.

    Raises:
        StackError: It is not a master of this kind, it does not answer, or it is on another machine.
    """
    if _LOCAL.fullmatch(master):
        return
    if not STANDALONE.fullmatch(master):
        raise StackError(
            f"SPARK={master} is no master that the embedded stack can use",
            next_step="make up SPARK=spark://host:7077, or SPARK=local[2] for Spark in the driver's own JVM",
        )
    if problem := find_problem(master):
        raise StackError(
            f"Spark's master {problem}",
            next_step="start it, or name another: make up SPARK=spark://host:7077, or SPARK=local[2] without a cluster",
        )
    if elsewhere := [host for host, _ in addresses(master) if not _is_here(host)]:
        raise StackError(
            f"Spark's master {', '.join(elsewhere)} is on another machine, whose executors can't reach the stack: "
            "its broker listens on loopback, and its warehouse is a local folder",
            next_step="use a cluster on this machine, or your own Kafka and storage: docs/deploy/spark-cluster.md",
        )


def _is_here(host: str) -> bool:
    """Whether a name or address is this machine's: a server can listen there."""
    for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
        with socket.socket(family, kind) as probe, suppress(OSError):
            probe.bind(address)
            return True
    return False
