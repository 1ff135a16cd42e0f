"""Each use of a library's internals is still needed, and still possible: if one fails, see `sluice.ingest.compat`."""

from __future__ import annotations

import inspect
import logging
import zipfile
from pathlib import Path

import pyspark
import pytest
from pyspark import SparkConf, SparkContext, StatusTracker, java_gateway

from sluice.ingest import compat

pytestmark = pytest.mark.unit


def test_pyspark_has_no_public_way_to_start_the_jvm_before_the_context() -> None:
    assert "conf" in inspect.signature(SparkContext._ensure_initialized).parameters
    public = {name for name in dir(SparkContext) if not name.startswith("_")}
    assert not public & {"ensureInitialized", "startJVM", "jvm", "gateway", "setSystemProperties"}
    # Without a JVM a configuration knows nothing of what spark-submit was given.
    assert not SparkConf().contains("spark.submit.deployMode")


def test_pyspark_imports_the_packages_of_its_helper_classes_only_as_a_whole() -> None:
    imports = inspect.getsource(java_gateway)
    for name in compat.HELPER_CLASSES:
        package, _, _ = name.rpartition(".")
        assert f'"{package}.*"' in imports and f'"{name}"' not in imports


def test_pyspark_neither_counts_executors_nor_asks_a_master() -> None:
    public = {name for name in (*dir(SparkContext), *dir(StatusTracker)) if not name.startswith("_")}
    assert not {name for name in public if "executor" in name.lower() or "master" in name.lower()} - {"master"}
    (core,) = (Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar")
    with zipfile.ZipFile(core) as archive:
        names = {*archive.namelist()}
    assert {f"{compat.BOUND_PORTS.replace('.', '/')}.class", "org/apache/spark/SparkStatusTracker.class"} <= names


def test_great_expectations_shows_progress_bars_without_a_data_context() -> None:
    from great_expectations.execution_engine import PandasExecutionEngine, SparkDFExecutionEngine
    from great_expectations.validator.validator import Validator

    logging.getLogger("great_expectations").setLevel(logging.CRITICAL)
    validator = Validator(execution_engine=PandasExecutionEngine())
    assert validator._determine_progress_bars() is True
    assert "show_progress_bars" not in inspect.signature(Validator.graph_validate).parameters
    # Known values are given by these methods; an engine has no parameter for them.
    assert not {"metrics", "known_metrics"} & set(inspect.signature(SparkDFExecutionEngine.__init__).parameters)
    for method in ("resolve_metrics", "resolve_metric_bundle"):
        assert callable(getattr(SparkDFExecutionEngine, method))
