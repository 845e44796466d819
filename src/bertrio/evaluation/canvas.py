"""Style of all pictures, and PNG files whose bytes depend on their content alone.

matplotlib's `Figure` is used without pyplot, which looks for a display and keeps state between pictures.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bertrio.core.files import whole_file

if TYPE_CHECKING:  # takes half a second to import
    from matplotlib.figure import Figure

INK, MUTED = "#1f2937", "#6b7280"
# Okabe and Ito: safe for colour-blind readers
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
LETTER = 0.063  # mean width of a letter of a note, in inches


@contextmanager
def picture(path: str | Path, size: tuple[float, float]) -> Iterator[Figure]:
    """Yield an empty figure of `size` inches, and write it to `path` as PNG on exit.

    The user's matplotlib settings are ignored. The file holds neither time nor version.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(Path(__file__).with_suffix(".mplstyle"), after_reset=True):
        figure = Figure(size, layout="constrained")
        yield figure
        with whole_file(path) as temporary:
            figure.savefig(temporary, format="png", dpi=150, facecolor="white", metadata={"Software": None})


def titled(figure: Figure, title: str, note: str) -> None:
    """Add a headline, and below the picture a note in grey."""
    lines = textwrap.fill(note, int(figure.get_figwidth() / LETTER), break_long_words=False, break_on_hyphens=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.supxlabel(lines, x=0.01, ha="left", fontsize=8.5, color=MUTED)


def distinct_colours(count: int) -> Sequence[Any]:
    """Return `count` distinct colours, easy to tell apart up to six."""
    from matplotlib import colormaps

    return LINES if count <= len(LINES) else list(colormaps["turbo"](np.linspace(0.05, 0.95, count)))
