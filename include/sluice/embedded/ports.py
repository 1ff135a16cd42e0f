"""Loopback ports: finds free ones and names the process that uses a taken one."""

from __future__ import annotations

import random
import socket
import urllib.error
import urllib.request
from collections.abc import Collection

import psutil

HOST = "127.0.0.1"
# Below the range of ephemeral ports, so that a stored port is rarely taken by an outgoing connection.
PORT_RANGE = range(20_000, 32_000)


def is_free(port: int) -> bool:
    """Whether a server can listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port with connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(taken: Collection[int] = ()) -> int:
    """Return a free port that is not in `taken`."""
    while True:
        port = random.choice(PORT_RANGE)  # noqa: S311 - no secret
        if port not in taken and is_free(port):
            return port


def accepts_connections(port: int) -> bool:
    """Whether something accepts connections on the port."""
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def answers_ok(url: str) -> bool:
    """Whether a GET request on loopback is answered with 200; proxy settings are ignored."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=3) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def describe_port_owner(port: int) -> str:
    """Describe the process that listens on a port, for a message."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            local = connection.laddr
            if local and local.port == port and connection.status == psutil.CONN_LISTEN and connection.pid:
                process = psutil.Process(connection.pid)
                return f"process {process.pid} ({' '.join(process.cmdline())[:120] or process.name()})"
    except psutil.Error:
        pass
    return "another process (only its owner can see which one)"
