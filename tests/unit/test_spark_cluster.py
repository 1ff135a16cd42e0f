"""What an application without an executor is told, by what the pages of a standalone cluster show."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sluice import spark_cluster
from sluice.doctor import airflow
from sluice.embedded.ports import HOST
from sluice.errors import ConfigError, ExecutorsUnavailableError
from sluice.spark_cluster import TIMEOUT, Cluster, ExecutorSearch, Need
from tests.support.services.servers import serving

pytestmark = pytest.mark.unit

APP = "app-1"
CONF = {"spark.master": "spark://m:7077", "spark.app.id": APP, "spark.executor.memory": "1g"}
STDERR = 'Spark Executor Command: "java"\n====\n\nCaused by: refused\n\tat a.b\n'


class Pages(ThreadingHTTPServer):
    """The pages of a master and of its only worker, on one port."""

    answers: dict[str, Any]

    @property
    def page(self) -> str:
        return f"http://{HOST}:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Pages

    def do_GET(self) -> None:
        answer = self.server.answers.get(self.path.partition("?")[0])
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write((answer if isinstance(answer, str) else json.dumps(answer)).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def pages() -> Iterator[Pages]:
    with serving(Pages((HOST, 0), _Handler)) as server:
        yield server


def show(pages: Pages, *, state: str = "WAITING", free: int = 2, ended: int = 0) -> None:
    """Show a worker of 2 cores and 2 GiB, an application, and its executors that have ended."""
    worker = {"host": "w", "webuiaddress": pages.page, "state": "ALIVE", "cores": 2, "coresfree": free}
    worker |= {"memory": 2048, "memoryfree": 2048}
    master = {"status": "ALIVE", "workers": [worker, {**worker, "state": "DEAD"}]}
    # One port serves master and worker.
    own = [{"id": n, "appid": APP} for n in range(ended)]
    of_worker = {"executors": [], "finishedexecutors": [*own, {"id": 9, "appid": "app-2"}]}
    pages.answers = {
        "/json/": {**master, **of_worker, "activeapps": [{"id": APP, "state": state}]},
        "/log/": STDERR,
    }


@pytest.fixture
def search(pages: Pages) -> Callable[..., ExecutorSearch]:
    return lambda **conf: ExecutorSearch({**CONF, **conf}, lambda *_: pages.server_port)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_cluster, "addresses", lambda master: [(HOST, 7077)] if master.startswith("spark") else [])


def test_executors_that_ended_fail_an_application_at_once(pages: Pages, search: Callable[..., ExecutorSearch]) -> None:
    show(pages, state="RUNNING", ended=2)
    search().look(5)
    show(pages, state="RUNNING", ended=3)
    with pytest.raises(
        ExecutorsUnavailableError, match="each one ends before it registers, with: Caused by: refused "
    ) as e:
        search().look(5)
    fields = e.value.fields
    assert (fields["master"], fields["registered"], fields["ended"]) == ("spark://m:7077", 0, 3)
    assert fields["stderr"] == f"{pages.page}/log/?appId={APP}&logType=stderr&executorId=2"
    assert "spark.driver.host" in e.value.next_step


def test_an_executor_that_no_worker_can_run_fails_an_application_and_a_busy_cluster_does_not(
    pages: Pages, search: Callable[..., ExecutorSearch]
) -> None:
    show(pages)
    for conf in ({"spark.executor.memory": "3g"}, {"spark.executor.cores": "3"}, {"spark.cores.max": "0"}):
        with pytest.raises(ExecutorsUnavailableError, match="No worker of Spark's cluster is large enough"):
            search(**conf).look(5)
    # Free cores, and no executor: something else is wrong.
    search().look(120)
    with pytest.raises(ExecutorsUnavailableError, match="within 120 s"):
        search().look(121)
    show(pages, free=0)
    search().look(10_000)
    show(pages, free=0, state="RUNNING")
    with pytest.raises(ExecutorsUnavailableError, match=r"within 7 s .*0 of 2 cores and .* are free"):
        search(**{TIMEOUT: "7"}).look(8)


def test_without_the_masters_page_only_the_time_counts() -> None:
    standalone = ExecutorSearch(CONF, lambda *_: None)
    standalone.look(120)
    with pytest.raises(ExecutorsUnavailableError, match=r"within 120 s .*registered 0, stderr|registered 0\]"):
        standalone.look(121)
    # YARN ends an application whose executors fail, and its queue may be long.
    yarn = {**CONF, "spark.master": "yarn"}
    ExecutorSearch(yarn, lambda *_: None).look(10_000)
    with pytest.raises(ExecutorsUnavailableError):
        ExecutorSearch({**yarn, TIMEOUT: "9"}, lambda *_: None).look(10)
    with pytest.raises(ConfigError, match=f"{TIMEOUT} must be a number of seconds, not '2m'"):
        ExecutorSearch({**CONF, TIMEOUT: "2m"}, lambda *_: None)


def test_applications_that_start_without_executors_do_not_wait_for_one() -> None:
    on_demand = {**CONF, "spark.dynamicAllocation.enabled": "true"}
    assert spark_cluster.asks_for_executors(CONF)
    assert not spark_cluster.asks_for_executors(on_demand)
    assert spark_cluster.asks_for_executors({**on_demand, "spark.dynamicAllocation.minExecutors": "1"})
    assert not spark_cluster.asks_for_executors({"spark.master": "local[2]"})


def test_memory_is_read_as_spark_reads_it() -> None:
    texts = {"512": 512, "768m": 768, "2G": 2048, "1gb": 1024, "2048k": 2, "1t": 1024**2}
    assert {text: Need.of({"spark.executor.memory": text}).memory for text in texts} == texts
    assert Need.of({"spark.executor.memory": "9g"}, "1g") == Need(1, 1024)
    with pytest.raises(ConfigError, match="can't be read"):
        Need.of({"spark.executor.cores": "two"})
    assert "no worker is alive" in str(Cluster((), {}))


def test_doctor_compares_what_groups_ask_with_the_largest_worker(pages: Pages) -> None:
    show(pages, free=1)
    of = "spark://m:7077"
    groups = {
        "shop": airflow.SparkSettings.model_validate(
            {"executor_memory": "2g", "conf": {"spark.master.ui.port": pages.server_port}}
        )
    }
    says = airflow._describe_master(of, groups)
    assert says.startswith(f"{of} answers: 1 worker(s), the largest with 2 core(s) and 2,048 MiB; 1 of 2 cores")
    assert says.endswith("an executor of group shop asks 1 core(s) and 2,048 MiB")
    groups["big"] = airflow.SparkSettings(executor_memory="3g")
    with pytest.raises(
        ConfigError, match=r"No worker of .*: for an executor, group big asks 1 core.* and 3,072 MiB; the"
    ):
        airflow._describe_master(of, groups)
    pages.answers = {}
    assert "its page" in airflow._describe_master(of, groups)
