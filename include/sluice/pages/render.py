"""HTML from what was read. Everything that comes from Kafka, a contract or a table is escaped: it is data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from itertools import islice
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from sluice.offsets import OffsetRange
from sluice.status import text
from sluice.status.text import duration, ranges_text

_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC)", re.ASCII)  # as `status_text.moment` writes it
_CODE = re.compile(r"`([^`]+)`")
_STATIC = {"sluice.css": "text/css", "sluice.js": "text/javascript"}
PARTITIONS = 50  # whose offsets stand in one line: thousands of tables, or batches, with as many partitions are a page
SECURITY = {
    # No script and no style but our own files: what slipped through the escaping could still do nothing.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

# A report has its style within, and nothing else: what stands in its place runs nothing, sends nothing, and is nobody.
REPORT = {
    **SECURITY,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'; sandbox",
}


def page(template: str, **values: Any) -> str:
    """A page.

    Args:
        template: its file's name.
        values: what it shows; `base` and `airflow` are the paths of our pages and of Airflow's.
    """
    return _ENVIRONMENT.get_template(template).render(**values)


def static(name: str) -> tuple[str, str] | None:
    """A stylesheet or script and its media type; None where there is none of that name."""
    if name not in _STATIC:
        return None
    return (files("sluice.pages") / "static" / name).read_text(encoding="utf-8"), _STATIC[name]


def inline(name: str) -> Markup:
    """One of our own stylesheets, to stand in a page that has nothing beside it."""
    text, _ = static(name) or ("", "")
    return Markup(text)  # noqa: S704 - our own file


def moment(at: datetime | None) -> Markup:
    """A moment: in UTC here, in the viewer's zone once the page's script has run; UTC stays in its title."""
    if at is None:
        return Markup('<span class="none">never</span>')
    utc = at.astimezone(UTC)
    words = text.moment(at)
    return Markup(f'<time datetime="{utc.isoformat()}" title="{words}">{words}</time>')  # noqa: S704 - digits and words of ours


def timed(text: str) -> Markup:
    """A text, with the moments in it as elements of their own: in the viewer's zone as all others are."""
    parts = _MOMENT.split(text)  # every second one is a moment
    return Markup("").join(_moment_in(part) if n % 2 else escape(part) for n, part in enumerate(parts))


def _moment_in(words: str) -> Markup:
    try:
        return moment(datetime.strptime(words, "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC))
    except ValueError:  # it only looks like one
        return escape(words)


def coded(text: str) -> Markup:
    """A text, with what stands between backticks in it as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - it is escaped


def number(value: float | None) -> str:
    """`12,345`; a dash where it is not known."""
    return "-" if value is None else f"{value:,}"


def figure(value: float) -> str:
    """`12,345`; of what is measured three digits: `0.123`, `5,425`."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def ranges(of: Mapping[int, OffsetRange]) -> str:
    """`0: [0, 10)  1: [4, 9)`; of very many partitions the first."""
    told = ranges_text(dict(islice(sorted(of.items()), PARTITIONS)))
    return f"{told}  and {len(of) - PARTITIONS:,} partitions more" if len(of) > PARTITIONS else told


def share(part: float | None, low: float | None, high: float | None) -> float:
    """Where a value lies between two others, in percent with one digit."""
    if part is None or low is None or high is None or high <= low:
        return 0.0
    return round(min(max((part - low) / (high - low), 0.0), 1.0) * 100, 1)


_ENVIRONMENT = Environment(
    loader=PackageLoader("sluice.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {
    "moment": moment,
    "utc": text.moment,
    "timed": timed,
    "coded": coded,
    "number": number,
    "figure": figure,
    "ranges": ranges,
    "duration": duration,
    "json": json.dumps,
    "path": lambda text: quote(str(text), safe=""),
}
_ENVIRONMENT.globals["share"] = share
