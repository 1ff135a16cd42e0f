"""Names for columns and tables, made of the names of fields and topics."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from sluice.contract.values import ICEBERG_COLUMNS, IDENTIFIER, OWN_NAMESPACES

_LONGEST = 100


def plain_name(text: str) -> str:
    """Return a legal name that is like a text."""
    ascii_text = unicodedata.normalize("NFKD", text.replace("ß", "ss")).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9_]", "_", ascii_text)[:_LONGEST]
    return name if IDENTIFIER.fullmatch(name) else f"field_{name}"


class ColumnNames:
    """Gives each column of a table a name of its own."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {each.lower() for each in taken}

    def make(self, text: str) -> str:
        """Return a legal column name that is like a text and was not returned before."""
        name = plain_name(text)
        if name.lower().startswith(("_kafka_", "_sluice_")) or name.lower() in ICEBERG_COLUMNS:
            name = f"field{name}"
        unique, number = name, 2
        while unique.lower() in self._taken:
            unique, number = f"{name}_{number}", number + 1
        self._taken.add(unique.lower())
        return unique


def table_name(topic: str, namespace: str = "") -> str:
    """Return `namespace.table` for a topic: `shop.orders` for `shop.orders`, `raw.orders` for `orders`.

    Args:
        topic: The topic.
        namespace: The namespace; by default what is before the topic's last dot, as one name.
    """
    outer, _, last = topic.strip(".").rpartition(".")
    own = plain_name(outer) if outer else "raw"
    if own.lower() in OWN_NAMESPACES:
        own = f"{own}_topics"
    return f"{namespace or own[:60]}.{plain_name(last or topic)}"
