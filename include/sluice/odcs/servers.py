"""The servers of an ODCS document: Kafka and the REST catalog, as the command's environment configures them."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

from open_data_contract_standard.model import Server

from sluice.contract.contract import Contract
from sluice.errors import ConfigError


def configured_servers(contract: Contract) -> Iterator[Server]:
    """Yield Kafka and the catalog, without credentials; those that are not configured are left out.

    The standard's server of type iceberg is a REST catalog: no other is written.
    """
    from pyiceberg.utils.config import Config

    from sluice.iceberg.table_names import catalog_name
    from sluice.kafka.broker import librdkafka_config

    try:
        hosts = librdkafka_config().get("bootstrap.servers")
    except ConfigError:
        hosts = None
    if hosts:
        plain = "json" if contract.value.format.startswith("json") else contract.value.format
        yield Server(server="kafka", type="kafka", host=str(hosts), format=plain)
    name = catalog_name()
    config = Config().get_catalog_config(name) or {}
    address = urlsplit(str(config.get("uri", "")))
    if address.scheme in ("http", "https") and config.get("type", "rest") == "rest":
        host = address.netloc.rpartition("@")[2]
        url = urlunsplit((address.scheme, host, address.path, "", ""))
        namespace = ".".join(contract.namespace)
        warehouse = str(config["warehouse"]) if "warehouse" in config else None
        yield Server(
            server="catalog", type="iceberg", catalog=name, catalogUrl=url, namespace=namespace, warehouse=warehouse
        )
