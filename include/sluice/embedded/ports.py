"""Loopback ports: choosing free ones, and saying who holds a busy one."""

from __future__ import annotations

import random
import socket
import urllib.error
import urllib.request
from collections.abc import Collection

import psutil

HOST = "127.0.0.1"
# Below the range from which systems lend ports to outgoing connections, so that a remembered port is rarely taken.
RANGE = range(20_000, 32_000)


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do it: a port whose last connections are still winding down counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(taken: Collection[int] = ()) -> int:
    """A free port that is none of those already given away."""
    while True:
        port = random.choice(RANGE)  # noqa: S311 - no secret
        if port not in taken and is_free(port):
            return port


def answers(port: int) -> bool:
    """Whether something accepts connections on the port."""
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def is_ok(url: str) -> bool:
    """Whether a server on loopback answers a question with 200, whatever proxy is set."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=3) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def holder(port: int) -> str:
    """Who listens on a port, in words, as far as the system tells us."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            local = connection.laddr
            if local and local.port == port and connection.status == psutil.CONN_LISTEN and connection.pid:
                process = psutil.Process(connection.pid)
                return f"process {process.pid} ({' '.join(process.cmdline())[:120] or process.name()})"
    except psutil.Error:
        pass
    return "another process (which one, this system tells only its owner)"
