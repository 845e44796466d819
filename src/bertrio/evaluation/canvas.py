"""How every picture looks, and how it is written: the same strokes make the same bytes.

matplotlib's `Figure` is used without pyplot, which would look for a display and keep state between pictures.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertrio.core.files import whole_file

if TYPE_CHECKING:  # half a second to import, and whoever imports this module may draw nothing
    from matplotlib.figure import Figure

INK, MUTED, FAINT, RED = "#1f2937", "#6b7280", "#e5e7eb", "#d62728"
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # Okabe and Ito: for all kinds of sight
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters on every machine
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9ca3af",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "grid.color": FAINT,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
}
LETTER = 0.063  # inches that a letter of a note takes on average


@contextmanager
def picture(path: str | Path, size: tuple[float, float]) -> Iterator[Figure]:
    """Give an empty figure of `size` inches and writes it to `path` as PNG at the end.

    The user's own matplotlib settings are left aside, and neither time nor version goes into the file.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        figure = Figure(size, layout="constrained")
        yield figure
        with whole_file(path) as temporary:
            figure.savefig(temporary, format="png", dpi=150, facecolor="white", metadata={"Software": None})


def titled(figure: Figure, title: str, note: str) -> None:
    """Add a headline, and at the bottom in grey what one must know to read the picture."""
    lines = textwrap.fill(note, int(figure.get_figwidth() / LETTER), break_long_words=False, break_on_hyphens=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=8.5, color=MUTED)


def colours_of(count: int) -> Sequence[Any]:
    """As many colours, told apart with ease while they are few."""
    from matplotlib import colormaps

    return LINES if count <= len(LINES) else list(colormaps["turbo"](np.linspace(0.05, 0.95, count)))
