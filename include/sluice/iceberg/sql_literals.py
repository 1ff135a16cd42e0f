"""Python values as SQL literals of Spark.

Text travels as hexadecimal digits, so that no key can end the literal; text of harmless characters alone as it is.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal

_PLAIN = re.compile(r"[A-Za-z0-9_.:/+=@-]*")


def literal(value: object) -> str:
    """The SQL text of one value.

    Raises:
        TypeError: a type that no identifier column can have.
    """
    match value:
        case bool():
            return str(value).lower()
        case int():
            return f"{value}L"
        case str():
            # Most keys are plain. Thousands stand in one condition, and a cast around each makes its planning slow.
            hidden = value.encode("utf-8", "surrogatepass").hex()
            return f"'{value}'" if _PLAIN.fullmatch(value) else f"CAST(X'{hidden}' AS STRING)"
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


def quoted(name: str) -> str:
    """An identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"
