"""Each use of Spark's internals is still needed, and still possible: if one fails, see `sluice.usage.compat`."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkContext, StatusTracker

pytestmark = pytest.mark.unit


def test_pyspark_reports_neither_task_metrics_nor_the_process_of_its_jvm() -> None:
    public = {name for name in (*dir(SparkContext), *dir(StatusTracker)) if not name.startswith("_")}
    assert not {name for name in public if any(word in name.lower() for word in ("metric", "fortag", "store", "pid"))}
    (core,) = (Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar")
    with zipfile.ZipFile(core) as archive:
        store, stage, bus = (
            archive.read(f"org/apache/spark/{name}.class")
            for name in ("status/AppStatusStore", "status/api/v1/StageData", "scheduler/LiveListenerBus")
        )
    assert b"stageData" in store and b"waitUntilEmpty" in bus
    for getter in (b"executorCpuTime", b"executorDeserializeCpuTime", b"inputBytes"):
        assert getter in stage
