"""Renders pages as HTML from templates. Values from Kafka, contracts and tables are escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.filters import do_filesizeformat
from markupsafe import Markup, escape

from sluice import dag_ids
from sluice.offsets import OffsetRange
from sluice.pages.quality import expectation_text
from sluice.pages.quality.matrix import COLUMNS, make_matrices
from sluice.status import text
from sluice.status.text import duration

if TYPE_CHECKING:
    from sluice.status.activity import BatchEnd

_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC)", re.ASCII)  # the format of `utc_text`
_CODE = re.compile(r"`([^`]+)`")
_DAG = re.compile(r"\bDAG (?:<code>)?([A-Za-z0-9_.-]*[A-Za-z0-9_-])(?:</code>)?")
_STATIC = {
    "sluice.css": "text/css",
    "sluice.js": "text/javascript",
    "operations.js": "text/javascript",
    "charts.js": "text/javascript",
    "uplot.js": "text/javascript",
    "uplot.css": "text/css",
    "sluice.svg": "image/svg+xml",
}
_UNITS = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
MAX_PARTITIONS = 50  # shown per line: a page may have thousands of tables or batches
SECURITY_HEADERS = {
    # Only our own files may run or style: a missed escape can do nothing.
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

# A report is a file that others can replace: no scripts, no requests, no forms. Its style is inline.
# It keeps its origin: only then a browser sends Airflow's cookie with the link back to the table.
REPORT_HEADERS = {
    **SECURITY_HEADERS,
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'self'; sandbox allow-same-origin",
}


def render_page(template: str, **values: Any) -> str:
    """Render a page.

    Args:
        template: name of the template file.
        values: what it shows; `base` and `airflow` are the URL paths of our pages and of Airflow.
    """
    return _ENVIRONMENT.get_template(template).render(**values)


def read_static(name: str) -> tuple[str, str] | None:
    """Read a stylesheet or script, and its media type; None if there is no such file."""
    if name not in _STATIC:
        return None
    return (files("sluice.pages") / "static" / name).read_text(encoding="utf-8"), _STATIC[name]


def inline_static(name: str) -> Markup:
    """Read a stylesheet to embed in a self-contained page."""
    text, _ = read_static(name) or ("", "")
    return Markup(text)  # noqa: S704 - our own file


def time_element(at: datetime | None) -> Markup:
    """Format a time in UTC; the page's script shows it in the viewer's zone, and UTC stays in the tooltip."""
    if at is None:
        return Markup('<span class="none">never</span>')
    utc = text.utc_text(at)
    iso = at.astimezone(UTC).isoformat()
    return Markup(f'<time datetime="{iso}" title="{utc}">{utc}</time>')  # noqa: S704 - no text from outside


def with_time_elements(text: str) -> Markup:
    """Escape a text; UTC times become elements that show in the viewer's zone, and parts between backticks code."""
    parts = _TIME.split(text)  # every second part is a time
    return Markup("").join(_parse_time(part) if n % 2 else with_code(part) for n, part in enumerate(parts))


def with_links(text: str) -> Markup:
    """The same, and `DAG <id>` of a DAG of Sluice leads to it."""
    return Markup(_DAG.sub(_link_dag, str(with_time_elements(text))))  # noqa: S704 - it is escaped


def _link_dag(found: re.Match[str]) -> str:
    dag = found[1]
    if dag not in (*dag_ids.OPERATOR_DAGS, *dag_ids.MAINTENANCE_DAGS, dag_ids.COMPARE) and not dag.startswith(
        dag_ids.ingest_dag("")
    ):
        return found[0]
    return f'DAG <a data-airflow-path="/dags/{quote(dag, safe="")}" href="#">{dag}</a>'


def _parse_time(part: str) -> Markup:
    try:
        return time_element(datetime.strptime(part, "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC))
    except ValueError:  # such as 2026-13-01
        return escape(part)


def with_code(text: str) -> Markup:
    """Escape a text, and format parts between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 - it is escaped


def format_number(value: float | None) -> str:
    """`12,345`; a dash for None."""
    return "-" if value is None else f"{value:,}"


def format_figure(value: float) -> str:
    """`12,345` for an integer; three significant digits for a measurement: `0.123`, `5,425`."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def format_compact(value: float | None) -> str:
    """`9,999`; above, three digits and a unit: `12.3k`, `4.56M`; a dash for None."""
    if value is None or value < 10_000:
        return format_number(value)
    size, unit = next(each for each in _UNITS if value >= 0.9995 * each[0])
    return f"{value / size:.3g}{unit}"


def format_elapsed(seconds: float) -> str:
    """`7 ms` below a second, else `1.2 s`."""
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{format_figure(seconds)} s"


def format_size(size: float) -> str:
    """`1.2 MB`."""
    return do_filesizeformat(size)


def format_span(seconds: float) -> str:
    """A round length of time: `30 min`, `7 d`."""
    return "24 h" if seconds == 86_400 else expectation_text.format_whole(int(seconds))


def format_ranges(ranges: Mapping[int, OffsetRange]) -> str:
    """`partition 0: 0 to 9, partition 1: 4 to 8`, both included; the first of very many partitions."""
    shown = [_format_range(*each) for each in islice(sorted(ranges.items()), MAX_PARTITIONS)]
    more = len(ranges) - MAX_PARTITIONS
    return ", ".join([*shown, *([f"and {more:,} more partitions"] if more > 0 else [])]) or "none"


def _format_range(partition: int, offsets: OffsetRange) -> str:
    start, last = offsets.start, offsets.end - 1
    which = "none" if last < start else f"{start:,}" if last == start else f"{start:,} to {last:,}"
    return f"partition {partition}: {which}"


def format_offset_spans(ranges: Mapping[int, Sequence[int]]) -> str:
    """The same for pairs of start and end, as the form of `backfill` takes them."""
    return format_ranges({p: OffsetRange(start, end) for p, (start, end) in ranges.items()})


def percent_between(part: float | None, low: float | None, high: float | None) -> float:
    """The position of a value between two others, in percent with one decimal."""
    if part is None or low is None or high is None or high <= low:
        return 0.0
    return round(min(max((part - low) / (high - low), 0.0), 1.0) * 100, 1)


def sparkline_points(values: Sequence[float], width: int = 56, height: int = 16) -> str:
    """The points of a line through values that are not negative; empty for fewer than two."""
    if len(values) < 2:
        return ""
    top, step = max(values) or 1, (width - 2) / (len(values) - 1)
    return " ".join(f"{1 + n * step:.0f},{height - 1 - (height - 3) * v / top:.0f}" for n, v in enumerate(values))


def batch_squares(batches: Sequence[BatchEnd], page: str, day_ago: datetime) -> Markup:
    """A square per batch that leads to the table's timeline at its time; a page may have ten thousand.

    Args:
        page: the address of the table's page.
        day_ago: batches since then are on the timeline of a day, which is the default.
    """
    link = f'<a tabindex="-1" href="{escape(page)}/timeline?'
    squares = [
        f"{link}{'' if each.at > day_ago else 'hours=168&amp;'}at={each.time}#then"
        f'" class="{each.tone}" title="{escape(each.text)}"></a>'
        for each in batches
    ]
    return Markup("".join(squares))  # noqa: S704 - what is from outside is escaped


_ENVIRONMENT = Environment(
    loader=PackageLoader("sluice.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {
    "time": time_element,
    "utc": text.utc_text,
    "times": with_time_elements,
    "links": with_links,
    "sentence": lambda text: text if str(text).rstrip().endswith((".", "]", "…", "...")) or not text else text + ".",
    "number": format_number,
    "figure": format_figure,
    "compact": format_compact,
    "span": format_span,
    "ranges": format_ranges,
    "offset_spans": format_offset_spans,
    "duration": duration,
    "json": json.dumps,
    "matrices": make_matrices,
    "path": lambda text: quote(str(text), safe=""),
}
_ENVIRONMENT.globals |= {
    "percent": percent_between,
    "points": sparkline_points,
    "squares": batch_squares,
    "dag_ids": dag_ids,
    "matrix_columns": COLUMNS,
}
