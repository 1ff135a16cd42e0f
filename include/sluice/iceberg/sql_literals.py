"""Python values and names as Spark SQL text. A value never ends its literal early, whatever it contains."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal

_PLAIN = re.compile(r"[A-Za-z0-9_.:/+=@-]*")


def sql_literal(value: object) -> str:
    """Return the SQL literal of one value.

    Raises:
        TypeError: the value's type is not allowed for identifier columns.
    """
    match value:
        case bool():
            return str(value).lower()
        case int():
            return f"{value}L"
        case str():
            # Plain text is quoted as it is: a condition may hold thousands of keys, and a cast of each slows planning.
            as_hex = value.encode("utf-8", "surrogatepass").hex()
            return f"'{value}'" if _PLAIN.fullmatch(value) else f"CAST(X'{as_hex}' AS STRING)"
        case bytes() | bytearray():
            return f"X'{value.hex()}'"
        case Decimal():
            return f"{value:f}BD"
        case datetime() if value.tzinfo is not None:
            return f"TIMESTAMP_LTZ'{value.astimezone(UTC).isoformat(sep=' ')}'"
        case datetime():
            return f"TIMESTAMP_NTZ'{value.isoformat(sep=' ')}'"
        case date():
            return f"DATE'{value.isoformat()}'"
    raise TypeError(f"no SQL literal for {type(value).__name__}")


def quote_identifier(name: str) -> str:
    """Return an identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"
