"""What a check found, and running checks with a time limit each.

In: functions that return a text or raise. Out: a `Finding` per check, in their order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from sluice.doctor.secret_values import SecretValues
from sluice.errors import RetryableError, SluiceError, first_line

WAIT = "Check address, network, firewall and this machine's load; or wait longer with --patience."


class State(StrEnum):
    """What came of a check."""

    OK = "ok"
    FAILED = "failed"
    NO_ANSWER = "no answer"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        text: what is there, or what is wrong.
        next_step: what to do about it; empty if there is nothing to do.
    """

    check: str
    state: State
    text: str
    next_step: str = ""
    seconds: float = 0.0


class SkippedError(Exception):
    """A check does not apply here; the text says why."""


@dataclass(frozen=True)
class Check:
    """A check.

    Attributes:
        run: returns what is there; raises a `SluiceError` with the next step, `SkippedError`, or `TimeoutError`.
        seconds: after this time it counts as not answered.
    """

    name: str
    run: Callable[[], str]
    seconds: float


def run_checks(checks: Sequence[Check], environment: Mapping[str, str]) -> Iterator[Finding]:
    """Run checks side by side, each in a thread of its own that is abandoned after its time.

    Not `timeouts.call_with_timeout`: it refuses calls while an earlier one has not returned.

    Args:
        checks: what to check.
        environment: the variables of the process; the values of secret ones are removed from all texts, also of those
            that a check sets.

    Yields:
        The findings, in the order of the checks.
    """
    running = [(check, *_start(check)) for check in checks]
    for check, thread, found, began in running:
        thread.join(max(began + check.seconds - time.monotonic(), 0))
        finding = found[0] if found else _no_answer(check)
        secrets = SecretValues.from_environment(environment)
        yield replace(finding, text=secrets.hide(finding.text), next_step=secrets.hide(finding.next_step))


def _start(check: Check) -> tuple[threading.Thread, list[Finding], float]:
    found: list[Finding] = []
    began = time.monotonic()
    thread = threading.Thread(target=lambda: found.append(_run(check, began)), name=check.name, daemon=True)
    thread.start()
    return thread, found, began


def _run(check: Check, began: float) -> Finding:
    def finding(state: State, text: str, next_step: str = "") -> Finding:
        return Finding(check.name, state, text, next_step, round(time.monotonic() - began, 1))

    try:
        return finding(State.OK, check.run())
    except SkippedError as reason:
        return finding(State.SKIPPED, str(reason))
    except RetryableError as error:
        return finding(State.NO_ANSWER, _with_fields(error), error.next_step)
    except SluiceError as error:
        return finding(State.FAILED, _with_fields(error), error.next_step)
    except TimeoutError as error:
        return finding(State.NO_ANSWER, str(error), WAIT)
    except Exception as error:  # noqa: BLE001 - one check must not end the others
        return finding(State.FAILED, first_line(error), "Correct what the message names; see docs/reference/cli.md.")


def _with_fields(error: SluiceError) -> str:
    where = error.where
    return error.message + (f" [{where}]" if where else "")


def _no_answer(check: Check) -> Finding:
    return Finding(
        check.name,
        State.NO_ANSWER,
        f"no answer within {check.seconds:g} s",
        WAIT,
        check.seconds,
    )


def as_facts(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings as JSON types, and whether all is well."""
    return {"healthy": exit_code(findings) == 0, "checks": findings}


def exit_code(findings: Sequence[Finding]) -> int:
    """The exit code: 3 if a check failed, else 2 if one did not answer, else 0."""
    states = {each.state for each in findings}
    return 3 if State.FAILED in states else 2 if State.NO_ANSWER in states else 0
