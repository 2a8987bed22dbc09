"""The report as one HTML file that needs nothing else: no script, no network, no other file."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from refsampler.conformance.reporting.health import committed, read_health
from refsampler.conformance.reporting.page import Page, page
from refsampler.conformance.reporting.stored import StoredRun
from refsampler.conformance.verdict import Status

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["HTML", "MARKS", "can_plot", "environment", "html", "render", "write_html"]

HTML: Final = "report.html"
"""Name of the page in the report's folder."""

MARKS: Final = {
    Status.PASS: "✓",
    Status.FAIL: "✗",
    Status.INCONCLUSIVE: "?",
    Status.INHERITED: "↑",
    Status.UNSUPPORTED: "–",
    Status.NOT_RUN: "·",
    Status.ERROR: "!",
}
"""A sign for each status, so that colour is never all that tells them apart."""

_MISSING: Final = "No plots: they need the extra `report` (pip install 'refsampler[report]')."


def can_plot() -> bool:
    """Whether the extra `report` is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def html(run: StoredRun) -> str:
    """Return the page of a run, without plots if the extra is missing."""
    plots = can_plot()
    made = page(run, read_health(committed()), plots=plots)
    return render(made if plots or not made.laws else replace(made, missing=_MISSING))


def render(made: Page) -> str:
    """Return the page as HTML; all text is escaped, whoever supplied it."""
    return environment().get_template("report.html.j2").render(page=made, marks=MARKS)


def environment() -> Environment:
    """Return the templates of the reports; what they show is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("refsampler.conformance.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )


def write_html(run: StoredRun) -> Path:
    """Write the page beside the report and return its path."""
    path = run.folder / HTML
    path.write_text(html(run), encoding="utf-8")
    return path
