"""Figures as inline SVG: colours of the page, real text, no ids that two figures could share."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "Sheet"]

COLOURS: Final = {
    "ink": "#010101",
    "soft": "#020202",
    "line": "#030303",
    "band": "#040404",
    "off": "#050505",
}
"""Names of the page's colours -> what stands for them until the figure is text."""

_INCHES: Final = (3.6, 2.4)
_BOX: Final = (0.19, 0.2, 0.78, 0.72)
_TICKS: Final = 4
_STEPS: Final = (1, 2, 2.5, 5, 10)
_SETTINGS: Final = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.parse_math": False,
    "axes.edgecolor": COLOURS["soft"],
    "axes.formatter.limits": (-2, 4),
    "axes.formatter.useoffset": False,
    "axes.labelcolor": COLOURS["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["soft"],
    "ytick.color": COLOURS["soft"],
    "path.simplify": True,
}


class Sheet:
    """A figure with one pair of axes that plot after plot is drawn on.

    Most of the time of a small plot goes into its ticks and their labels: they are made once.

    Raises:
        ImportError: matplotlib, the extra `report`, is not installed.

    """

    def __init__(self) -> None:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        with mpl.rc_context(_SETTINGS):
            figure = Figure(figsize=_INCHES)
            self._axes = figure.add_axes(_BOX)
        for patch in (figure.patch, self._axes.patch):
            patch.set_visible(False)

    def draw(self, name: str, label: str, plot: Callable[[Axes], None]) -> str:
        """Return an SVG element that belongs into an HTML page.

        Args:
            name: unique in the page; keeps ids of clip paths apart.
            label: what it shows, for who cannot see it; plain text.
            plot: adds lines and patches, labels, and ticks that differ from plain ones.

        """
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        held = io.StringIO()
        with mpl.rc_context({**_SETTINGS, "svg.hashsalt": name}):
            self._clear()
            plot(self._axes)
            self._axes.relim()
            self._axes.autoscale_view()
            # Figure.savefig draws everything twice, first to measure what is not asked for here.
            FigureCanvasSVG(self._axes.figure).print_svg(held, metadata={"Date": None})
        return _inline(held.getvalue(), label)

    def _clear(self) -> None:
        """Remove what was plotted, and keep the axes, which take long to make."""
        from matplotlib.ticker import MaxNLocator, ScalarFormatter

        axes = self._axes
        for artist in (*axes.lines, *axes.patches):
            artist.remove()
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(_TICKS, steps=_STEPS))
            axis.set_major_formatter(ScalarFormatter())


def _inline(text: str, label: str) -> str:
    from markupsafe import escape

    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = _without_idle_ids(text)
    for colour, stands in COLOURS.items():
        text = text.replace(stands, f"var(--{colour})")
    text = re.sub(r"<[^>]+>", lambda tag: _rounded(tag[0]), text)
    opening = f'<svg role="img" aria-label="{escape(label)}"'
    return re.sub(r"\s*\n\s*", "\n", text.replace("<svg", opening, 1))


def _rounded(tag: str) -> str:
    """Return a tag with its places to a tenth of a point; what labels say stands between tags."""
    return re.sub(r"-?\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}", tag)


def _without_idle_ids(text: str) -> str:
    """Drop ids that nothing refers to: another figure of the page has the same."""
    used = {*re.findall(r'href="#([^"]+)"', text), *re.findall(r"url\(#([^)]+)\)", text)}
    return re.sub(r' id="([^"]+)"', lambda one: one[0] if one[1] in used else "", text)
