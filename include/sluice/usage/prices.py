"""The price file that `SLUICE_PRICES` names: what CPU time, storage and requests cost. In: YAML. Out: `Prices`.

Without a file, costs are shown in units alone. A field that nothing is counted for is refused: no price is applied to a
guess.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from sluice.contract.document import Problem, read_document
from sluice.contract.validation_messages import describe_errors
from sluice.contract.values import StrictModel
from sluice.errors import ConfigError

VARIABLE = "SLUICE_PRICES"
GB = 1_000_000_000
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RequestPrices(StrictModel):
    """Prices of 1,000 requests, by kind.

    Attributes:
        put: A file written to the object store.
        catalog: A call of the catalog.
    """

    put: Price = 0.0
    catalog: Price = 0.0


class Prices(StrictModel):
    """What the price file may have.

    Attributes:
        currency: As it is shown behind amounts.
        per_cpu_hour: An hour of one CPU.
        per_gb_month: A gigabyte (10⁹ bytes) stored for a month.
        per_1000_requests: By kind.
    """

    currency: Annotated[str, Field(min_length=1, max_length=10)]
    per_cpu_hour: Price
    per_gb_month: Price = 0.0
    per_1000_requests: RequestPrices = RequestPrices()

    def work(self, cpu_seconds: float, files: float, catalog_calls: float) -> float:
        """The price of work: of CPU time, of files written and of calls of the catalog."""
        requests = files * self.per_1000_requests.put + catalog_calls * self.per_1000_requests.catalog
        return cpu_seconds / 3600 * self.per_cpu_hour + requests / 1000

    def storage_month(self, stored: float) -> float:
        """The price of bytes stored for a month."""
        return stored / GB * self.per_gb_month

    def text(self, amount: float) -> str:
        """An amount with the currency; small amounts keep two digits that count."""
        digits = 2 if amount == 0 or amount >= 1 else 4 if amount >= 0.01 else 6
        return f"{amount:,.{digits}f} {self.currency}"


def load_prices() -> Prices | None:
    """Read the price file; None if `SLUICE_PRICES` names none.

    Raises:
        ConfigError: the file can't be read, or is not valid; the message names file, line and field.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    document = read_document(Path(named), named)
    problems = list(document.problems)
    if not problems:
        try:
            return Prices.model_validate(document.data)
        except ValidationError as error:
            for location, message in describe_errors(error, Prices, document.data):
                problems.append(document.problem(location, message))
    raise _invalid(problems)


def _invalid(problems: list[Problem]) -> ConfigError:
    lines = "; ".join(str(problem) for problem in sorted(problems))
    return ConfigError(
        f"The price file is not valid: {lines}",
        next_step=f"Correct the file that {VARIABLE} names, or unset it. docs/operate/cost.md has an example.",
    )
