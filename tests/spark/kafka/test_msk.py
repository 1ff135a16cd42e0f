"""AWS_MSK_IAM in Java: Kafka's client of Spark's version takes our settings, and AWS's login module signs by them.

It runs in a JVM of its own, without Spark and without a network: no MSK has been asked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError

from sluice.embedded import jars
from sluice.embedded.home import cache_folder
from sluice.embedded.java import find_java
from sluice.embedded.ports import HOST
from sluice.errors import ConfigError
from sluice.kafka import java_settings, login, msk

pytestmark = pytest.mark.spark

BROKER = "b-1.demo.abc123.c2.kafka.eu-central-1.amazonaws.com"
GIVEN = {"bootstrap.servers": f"{HOST}:1", "security.protocol": "SASL_SSL", "sasl.mechanism": msk.MECHANISM}


KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "none", "AWS_SESSION_TOKEN": "session"}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@contextmanager
def java(sets: Sequence[str]) -> Iterator[Any]:
    """A JVM with Spark's jars and those of sets."""
    bundled = Path(pyspark.__file__).parent / "jars"
    folders = [jars.ensure_jars(each) for each in (jars.SPARK, *sets)]
    gateway = JavaGateway.launch_gateway(
        jarpath=str(next(bundled.glob("py4j-*.jar"))),
        classpath=os.pathsep.join(f"{folder}/*" for folder in (*folders, bundled)),
        javaopts=["-XX:TieredStopAtLevel=1", f"-Duser.home={cache_folder()}/none"],
        java_path=str(find_java(cache_folder()).executable),
        die_on_exit=True,
    )
    try:
        yield gateway
    finally:
        gateway.shutdown()


def make_client(gateway: Any) -> None:
    """Let Kafka's admin client, as Spark makes it, check the settings and log in; it connects to nothing."""
    options = gateway.jvm.java.util.HashMap()
    for name, value in java_settings.spark_options(GIVEN).items():
        options.put(name.removeprefix("kafka."), value)
    gateway.jvm.org.apache.kafka.clients.admin.AdminClient.create(options).close()


def test_kafkas_client_takes_the_settings_and_awss_module_signs() -> None:
    with java(jars.CLOUDS["msk"]) as gateway:
        make_client(gateway)
        iam = gateway.jvm.software.amazon.msk.auth.iam
        asked = iam.internals.AWSCredentialsCallback()
        callbacks = gateway.new_array(gateway.jvm.javax.security.auth.callback.Callback, 1)
        callbacks[0] = asked
        handler = iam.IAMClientCallbackHandler()
        entry = gateway.jvm.javax.security.auth.login.AppConfigurationEntry
        required = getattr(
            gateway.jvm, "javax.security.auth.login.AppConfigurationEntry$LoginModuleControlFlag"
        ).REQUIRED
        module = entry("software.amazon.msk.auth.iam.IAMLoginModule", required, gateway.jvm.java.util.HashMap())
        entries = gateway.jvm.java.util.ArrayList()
        entries.add(module)
        handler.configure(gateway.jvm.java.util.HashMap(), msk.MECHANISM, entries)
        handler.handle(callbacks)
        assert asked.isSuccessful()
        parameters = iam.internals.AuthenticationRequestParams.create(BROKER, asked.getAwsCredentials(), "sluice")
        signed = json.loads(bytes(iam.internals.AWS4SignedPayloadGenerator().signedPayload(parameters)))
    assert signed["host"] == BROKER
    assert signed["action"] == "kafka-cluster:Connect"
    assert 890 < int(signed["x-amz-expires"]) <= 900  # from now on, and the clock goes on
    assert signed["x-amz-credential"].startswith("AKIDEXAMPLE/")
    assert signed["x-amz-credential"].endswith("/eu-central-1/kafka-cluster/aws4_request")
    assert signed["x-amz-security-token"] == "session"


@pytest.mark.parametrize("sets", [(), (jars.MSK,)], ids=["no jar", "no SDK"])
def test_missing_jars_are_named_with_their_set(sets: Sequence[str]) -> None:
    with java(sets) as gateway:
        with pytest.raises(Py4JJavaError) as failed:
            make_client(gateway)
        found = login.login_error_from_spark(failed.value)
    assert isinstance(found, ConfigError)
    assert "make jars SET=msk" in str(found)
