"""Each of compat's workarounds is still needed: these fail when confluent-kafka has a public way."""

from __future__ import annotations

import pkgutil

import confluent_kafka
import confluent_kafka.schema_registry
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from sluice.kafka import compat
from tests.support.services.registries import scripted_registry

pytestmark = pytest.mark.unit


def test_a_redirect_without_the_workaround_does_not_say_where_to() -> None:
    with scripted_registry() as answers:
        answers.otherwise = lambda _: (302, "", {"Location": "https://sso.example/in"})
        client = SchemaRegistryClient({"url": answers.url, "max.retries": 0})
        with pytest.raises(SchemaRegistryError) as error:
            client.get_latest_version("t-value")
        assert "sso.example" not in str(error.value)
        with pytest.raises(compat.RedirectError) as redirect:
            compat.raise_on_redirect(client).get_latest_version("t-value")
        assert (redirect.value.status, redirect.value.host) == (302, "sso.example")


def test_librdkafka_has_one_code_for_all_positions_that_it_cannot_start_from() -> None:
    # tests/system/embedded/test_truncated_log.py meets the first of these texts, from a real broker.
    truncated = (
        "Partition log truncation detected at offset 150 (leader epoch 0): broker end offset is 100 (offset leader "
        "epoch 0). Reset to INVALID.: Local: Partition log truncation detected (broker 3)"
    )
    assert compat.truncated_at(truncated) == 100
    assert (
        compat.truncated_at("No epoch found less or equal to offset 5 (leader epoch 0): broker end offset is -1") == 0
    )
    assert compat.truncated_at("fetch failed due to requested offset not available on the broker") is None


def test_the_client_exports_no_exception_of_its_http_library() -> None:
    exported = [getattr(confluent_kafka.schema_registry, name) for name in confluent_kafka.schema_registry.__all__]
    errors = {each.__name__ for each in exported if isinstance(each, type) and issubclass(each, Exception)}
    assert not {each for each in errors if "Transport" in each or "Connect" in each}
    client = SchemaRegistryClient({"url": "http://127.0.0.1:1", "max.retries": 0})
    with pytest.raises(Exception) as error:  # noqa: PT011 - its type is what is looked for
        client.get_latest_version("t-value")
    assert not isinstance(error.value, (SchemaRegistryError, OSError)) and compat.is_transport_error(error.value)


def test_the_parser_of_key_values_is_in_no_public_module() -> None:
    public = [each.name for each in pkgutil.walk_packages(confluent_kafka.__path__) if not each.name.startswith("_")]
    assert not [name for name in public if "parser" in name or "string" in name]
    assert not hasattr(confluent_kafka, "parse_key_values")
    assert compat.parse_key_values(r"a=1, b=2\,3") == {"a": "1", "b": "2,3"}
    with pytest.raises(ValueError, match="expected key=value"):
        compat.parse_key_values("hunter2")
