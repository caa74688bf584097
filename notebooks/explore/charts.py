"""Charts that say one thing each: the title is the finding, the subtitle what is shown, and in which unit.

The background is white, also where the page around them is dark: no colour of text is read well on both. The
colours are those of Okabe and Ito, which colour-blind readers can tell apart. Times are UTC.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from reput.errors import ReputError
from reput.newer_python import UTC
from reput.words import install_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
#: Of titles, and of all other text.
INK, SOFT = "#1C2329", "#4A545E"
GREY, PAPER = "#757575", "#FFFFFF"
#: The order of colours for series without a colour of their own.
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)

_DPI = 110
_LONGEST_NAME = 32
_LETTERS_TO_AN_INCH = 9.6  # of a title
_STYLE: dict[str, Any] = {
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.facecolor": "none",
    "font.size": 10,
    "text.color": SOFT,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": GREY,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}


class Chart:
    """A figure that a notebook shows as a picture, and as its title where it can't.

    Args:
        title: the finding, in a sentence.
        size: inches, width and height.
        rows, columns: of axes.
        shares: matplotlib's ``sharex``, ``sharey``, ``width_ratios`` or ``height_ratios``.

    Attributes:
        axes: row by row.

    Raises:
        ReputError: matplotlib isn't installed.
    """

    def __init__(
        self,
        title: str,
        size: tuple[float, float] = (8.4, 3.6),
        rows: int = 1,
        columns: int = 1,
        shares: Mapping[str, Any] | None = None,
    ) -> None:
        plots = _matplotlib()
        self.title = title
        with plots.rc_context(_STYLE):
            from matplotlib.figure import Figure

            self.figure: Figure = Figure(figsize=size, layout="constrained")
            made = self.figure.subplots(rows, columns, squeeze=False, **(shares or {}))
            lines = textwrap.fill(title, int(size[0] * _LETTERS_TO_AN_INCH))
            self.figure.suptitle(lines, x=0.01, ha="left", fontsize=12.5, fontweight="bold", color=INK)
        self.axes: list[Axes] = list(made.flat)

    def __repr__(self) -> str:
        return f"[chart: {self.title}]"

    def _repr_png_(self) -> bytes:
        return self.png()

    def png(self) -> bytes:
        """The picture."""
        buffer = io.BytesIO()
        with _matplotlib().rc_context(_STYLE):
            # Without the version of the software, the same data give the same bytes.
            self.figure.savefig(buffer, dpi=_DPI, format="png", metadata={"Software": None})
        return buffer.getvalue()


def short(name: object) -> str:
    """A name that leaves room for the picture: a topic may have 127 characters, and more."""
    text = str(name)
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def subtitle(axes: Axes, text: str) -> None:
    """What the axes show, and in which unit."""
    axes.set_title(text, fontsize=9.5, color=SOFT, loc="left")


def note(
    axes: Axes,
    text: str,
    at: tuple[Any, Any],
    shift: tuple[float, float] = (0, 0),
    where: Any = "data",
    points: bool = False,
    **text_options: Any,
) -> None:
    """A few words in the picture.

    Args:
        at: the point that they describe, in ``where`` ("data", "axes fraction", or one for x and one for y).
        shift: from there to the words, in points.
        points: draw a line from the words to the place.
        text_options: of matplotlib's text.
    """
    line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.8} if points else None
    options = {"color": SOFT, "fontsize": 9.5, "va": "center", **text_options}
    axes.annotate(text, at, shift, where, "offset points", arrowprops=line, annotation_clip=False, **options)


def legend(axes: Axes, *, backwards: bool = False) -> None:
    """Names beside the axes; ``backwards`` for areas stacked from below."""
    handles, labels = axes.get_legend_handles_labels()
    step = -1 if backwards else 1
    axes.legend(
        handles[::step],
        labels[::step],
        loc="center left",
        bbox_to_anchor=(1, 0.5),
        frameon=False,
        labelcolor=SOFT,
        fontsize=9.5,
    )


def thousands(axes: Axes, which: str = "y") -> None:
    """Numbers with separators."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(lambda value, _place: f"{value:,.10g}")


def utc(axes: Axes) -> None:
    """A time axis in UTC, as exact as its span needs; its label has the day."""
    from matplotlib import dates

    made: Any = dates
    low, high = axes.get_xlim()
    days = high - low
    form = "%H:%M:%S" if days < 0.1 else "%H:%M" if days < 2 else "%m-%d %H:%M" if days < 10 else "%m-%d"
    axes.xaxis.set_major_locator(made.AutoDateLocator(tz=UTC, minticks=4, maxticks=7))
    axes.xaxis.set_major_formatter(made.DateFormatter(form, tz=UTC))
    axes.set_xlabel(f"UTC, {made.num2date(low, tz=UTC):%Y-%m-%d}")


def naive(times: Any) -> Any:
    """UTC times without a zone, as matplotlib shows them unchanged."""
    import pandas as pd

    return pd.DatetimeIndex(times).tz_localize(None)


def grid(axes: Axes, which: str = "y") -> None:
    """Lines to read values by, along one axis."""
    axes.grid(axis="y" if which == "y" else "x", color=GREY, alpha=0.25, linewidth=0.6)
    axes.tick_params(which="both", length=0)


def _matplotlib() -> Any:
    try:
        return import_module("matplotlib")
    except ImportError as error:
        expected = "the package matplotlib, which comes with reput's extra `notebook`"
        step = install_step("spark,notebook")
        raise ReputError(
            "charts need matplotlib", expected=expected, found=str(error), next_step=step
        ) from error
