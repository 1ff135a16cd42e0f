"""S3 drops connections, answers late, with 503 and with 412: every record is in the tables once, in both modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.iceberg.test_catalogs import use_catalog
from tests.spark.maintain.test_maintain import fill
from tests.support.lake import Lake
from tests.support.services.catalogs import S3MOCK, RunningCatalog
from tests.support.services.s3 import S3Server
from tests.support.services.s3_faults import KINDS, S3Faults

pytestmark = [pytest.mark.infra, pytest.mark.timeout(900)]

SHARE, ROUNDS, ATTEMPTS = 0.05, 4, 6


@pytest.fixture
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Faults]:
    """The store in front of which faults happen. Its name gives Spark the jars for S3."""
    folder = tmp_path_factory.mktemp("faulty")
    with S3Server(folder) as store, S3Faults(store.port, seed=41) as faults:
        settings = {
            "TYPE": "sql",
            "URI": f"sqlite:///{folder}.db?timeout=60",
            **store.settings_at(faults.port),
        }
        with use_catalog(spark, "faulty", RunningCatalog(settings, S3MOCK)):
            yield faults


def test_every_record_is_there_once_after_a_bad_network(catalog: S3Faults, lake: Callable[..., Lake]) -> None:
    it = lake()
    it.create_topic(2)
    appended, merged = it.contract(), it.contract(mode="upsert")
    failed = []
    catalog.share = SHARE
    for number in range(ROUNDS):
        fill(it, 100 * number)
        for _ in range(ATTEMPTS):
            # As Airflow tries a run again, whatever ended it.
            try:
                outcome = it.run()
            except Exception as error:  # noqa: BLE001 - any failure of the network
                failed.append(str(error)[:200])
                continue
            if all(outcome[each]["state"] == "published" for each in (appended, merged)):
                break
            failed.append(str(outcome)[:200])
    catalog.share = 0.0
    for _ in range(3):
        if it.plan().has_work:
            it.run()
    assert not it.plan().has_work
    print(f"faults {dict(catalog.done)}; {len(failed)} attempts failed: {failed}")
    assert set(catalog.done) == set(KINDS) and sum(catalog.done.values()) > 30, catalog.done
    it.assert_appended(appended)
    it.assert_folded(merged)
