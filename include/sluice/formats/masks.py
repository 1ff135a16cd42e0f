"""Masks: personal data is hidden before anything but staging sees it.

`sha256` is HMAC-SHA-256 under the key in SLUICE_MASK_KEY: equal values stay equal, and nobody without the key can tell
which they were by trying. The key reaches Spark as data, so that no plan, log or page shows it.
"""

from __future__ import annotations

import hashlib
import os

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sluice.contract.contract import Contract
from sluice.errors import ConfigError

KEY = "SLUICE_MASK_KEY"
REDACTED = "[redacted]"
SHORTEST = 16
_BLOCK = 64
_INNER, _OUTER = "_sluice_inner", "_sluice_outer"


def masked(frame: DataFrame, contract: Contract) -> DataFrame:
    """The frame with the contract's masked columns hidden; null stays null.

    Raises:
        ConfigError: a column needs the key, and there is none, or it is too short to be one.
    """
    if any(c.mask == "sha256" for c in contract.columns):
        pads = frame.sparkSession.createDataFrame([_pads(contract)], f"{_INNER} binary, {_OUTER} binary")
        frame = frame.crossJoin(F.broadcast(pads))
    hidden = {
        c.name: _hashed(F.col(c.name)) if c.mask == "sha256" else F.when(F.col(c.name).isNotNull(), F.lit(REDACTED))
        for c in contract.columns
        if c.mask
    }
    return frame.withColumns(hidden).drop(_INNER, _OUTER) if hidden else frame


def _hashed(text: Column) -> Column:
    inner = F.unhex(F.sha2(F.concat(F.col(_INNER), text.cast("binary")), 256))
    return F.sha2(F.concat(F.col(_OUTER), inner), 256)


def _pads(contract: Contract) -> tuple[bytearray, bytearray]:
    """The two blocks that HMAC puts before what it hashes."""
    key = os.environ.get(KEY, "").encode()
    if len(key) < SHORTEST:
        raise ConfigError(
            f"The key that columns are masked with is {'too short' if key else 'not set'}.",
            way_out=f"Set {KEY} to a secret of {SHORTEST} bytes or more, the same for as long as hashes are compared.",
            table=contract.table,
        )
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    return bytearray(b ^ 0x36 for b in block), bytearray(b ^ 0x5C for b in block)
