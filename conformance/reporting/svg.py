"""Figures as inline SVG: colours of the page, real text, no ids that two figures could share."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "new_figure", "to_svg"]

COLOURS: Final = {
    "ink": "#010101",
    "soft": "#020202",
    "line": "#030303",
    "band": "#040404",
    "off": "#050505",
}
"""Names of the page's colours -> what stands for them until the figure is text."""

_FONT_SIZE: Final = 9
_SETTINGS: Final = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": _FONT_SIZE,
    "axes.edgecolor": COLOURS["soft"],
    "axes.labelcolor": COLOURS["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["soft"],
    "ytick.color": COLOURS["soft"],
    "path.simplify": True,
}


def new_figure() -> Figure:
    """Return an empty figure of a width that a phone shows.

    Raises:
        ImportError: matplotlib, the extra `report`, is not installed.

    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update(_SETTINGS)
    figure = Figure(figsize=(3.6, 2.4))
    figure.subplots_adjust(left=0.19, right=0.97, bottom=0.2, top=0.92)
    return figure


def to_svg(figure: Figure, name: str, label: str) -> str:
    """Return the figure as an SVG element that belongs into an HTML page.

    Args:
        figure: to be drawn.
        name: unique in the page; keeps ids of clip paths apart.
        label: what it shows, for who cannot see it; plain text.

    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_visible(False)
    held = io.StringIO()
    # Figure.savefig draws everything twice, the first time to measure what is not asked for here.
    with mpl.rc_context({"svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(held, metadata={"Date": None})
    text = held.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = _without_idle_ids(text)
    for colour, stands in COLOURS.items():
        text = text.replace(stands, f"var(--{colour})")
    text = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", text)
    opening = f'<svg role="img" aria-label="{_attribute(label)}"'
    return re.sub(r"\s*\n\s*", "\n", text.replace("<svg", opening, 1))


def _without_idle_ids(text: str) -> str:
    """Drop ids that nothing refers to: another figure of the page has the same."""
    used = {*re.findall(r'href="#([^"]+)"', text), *re.findall(r"url\(#([^)]+)\)", text)}
    return re.sub(r' id="([^"]+)"', lambda one: one[0] if one[1] in used else "", text)


def _attribute(text: str) -> str:
    from markupsafe import escape

    return str(escape(text))
