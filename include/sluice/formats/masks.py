"""Masks: the contract's masked columns are hashed or redacted at the end of decode; only staging keeps the values.

`sha256` is HMAC-SHA-256 with the key in SLUICE_MASK_KEY: equal values get equal hashes, and without the key the values
cannot be guessed by trying. The key reaches Spark as data, so that no plan, log or page shows it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sluice.contract.contract import Contract
from sluice.errors import ConfigError

if TYPE_CHECKING:  # plan checks the key where no Spark is loaded
    from pyspark.sql import Column, DataFrame

KEY_VARIABLE = "SLUICE_MASK_KEY"
REDACTED = "[redacted]"
MIN_KEY_BYTES = 16
_BLOCK = 64
_INNER, _OUTER = "_sluice_inner", "_sluice_outer"


def mask_columns(frame: DataFrame, contract: Contract) -> DataFrame:
    """Hash or redact the contract's masked columns; null stays null.

    Raises:
        ConfigError: A column uses `sha256`, and the key is missing or too short.
    """
    from pyspark.sql import functions as F

    if needs_key(contract):
        pads = frame.sparkSession.createDataFrame([hmac_pads(contract)], f"{_INNER} binary, {_OUTER} binary")
        frame = frame.crossJoin(F.broadcast(pads))
    hidden = {
        c.name: _hashed(F.col(c.name)) if c.mask == "sha256" else F.when(F.col(c.name).isNotNull(), F.lit(REDACTED))
        for c in contract.columns
        if c.mask
    }
    return frame.withColumns(hidden).drop(_INNER, _OUTER) if hidden else frame


def needs_key(contract: Contract) -> bool:
    """Whether a column of the contract is hashed."""
    return any(column.mask == "sha256" for column in contract.columns)


def find_missing_keys(contracts: Iterable[Contract]) -> dict[str, ConfigError]:
    """Tables that need a masking key which this process lacks, each with the error."""
    found = {}
    for contract in filter(needs_key, contracts):
        try:
            _key(contract)
        except ConfigError as error:
            found[contract.table] = error
    return found


def _hashed(text: Column) -> Column:
    from pyspark.sql import functions as F

    inner = F.unhex(F.sha2(F.concat(F.col(_INNER), text.cast("binary")), 256))
    return F.sha2(F.concat(F.col(_OUTER), inner), 256)


def hmac_pads(contract: Contract) -> tuple[bytearray, bytearray]:
    """The inner and outer padded keys of HMAC (RFC 2104).

    Raises:
        ConfigError: The key is missing or too short.
    """
    key = _key(contract)
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    return bytearray(b ^ 0x36 for b in block), bytearray(b ^ 0x5C for b in block)


def key_fingerprint(contract: Contract) -> str:
    """What tells two keys apart, and neither of them.

    Raises:
        ConfigError: The key is missing or too short.
    """
    return hmac.new(_key(contract), b"sluice.mask-key", hashlib.sha256).hexdigest()[:16]


def _key(contract: Contract) -> bytes:
    key = os.environ.get(KEY_VARIABLE, "").encode()
    if len(key) < MIN_KEY_BYTES:
        raise ConfigError(
            f"The masking key {KEY_VARIABLE} is {'too short' if key else 'not set'}.",
            next_step=f"Set {KEY_VARIABLE} to a secret of at least {MIN_KEY_BYTES} bytes in the environment of "
            "Airflow's workers, or of the command. Keep it unchanged as long as hashes are compared.",
            table=contract.table,
        )
    return key
