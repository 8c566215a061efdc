"""What all figures share: one style, PNG or SVG (or PDF), and the same bytes each time."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.documents.files import file_error, write_bytes_atomic
from planner.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS = 160  # per inch
SCREEN_DOTS = 80  # per inch, in notebooks
POINTS = 72  # per inch
INK, DIM, GREY, PALE = "#262626", "#6b6b6b", "#8c8c8c", "#e8e8e8"
PREFILL, DECODE, COLOCATED, TRANSFER = "#f08a24", "#2f6fb4", "#7d4fa8", "#3a9d5d"

_STYLE: dict[str, Any] = {
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a dollar in a name is a dollar
    "axes.labelcolor": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.color": GREY,
    "axes.edgecolor": GREY,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "planner",  # the same identifiers each time
}
_METADATA = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
"""Metadata that matplotlib is not to write, because they change, by suffix."""
FORMATS = (".png", ".svg")
PRINTED_FORMATS = (*FORMATS, ".pdf")


def check_format(path: Path, formats: Sequence[str] = FORMATS) -> str:
    """Suffix of a figure's name, in small letters.

    Raises
    ------
    SpecError
        It is none of `formats`.
    """
    suffix = path.suffix.lower()
    if suffix not in formats:
        known = f"{', '.join(formats[:-1])} or {formats[-1]}"
        raise file_error(path, "is no plot", f"the name has to end in {known}")
    return suffix


def save_figure(path: Path, draw: Callable[[Figure], None], formats: Sequence[str] = FORMATS) -> None:
    """Write what `draw` makes of an empty figure.

    Raises
    ------
    SpecError
        The suffix is none of `formats`, matplotlib is missing, or the file cannot be written.
    """
    suffix = check_format(path, formats)
    data = io.BytesIO()
    with _empty_figure() as canvas:
        draw(canvas)
        canvas.savefig(data, format=suffix[1:], metadata=_METADATA[suffix])
    write_bytes_atomic(path, data.getvalue())


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A figure as notebooks show it.

    Attributes
    ----------
    png : bytes
        Its file.
    width : int
        At which it is shown; the file has more for sharp displays and print. [pixel]
    """

    png: bytes
    width: int

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return self.png, {"width": self.width}


def picture_of(draw: Callable[[Figure], None]) -> Picture:
    """What `draw` makes of an empty figure, for notebooks.

    Raises
    ------
    SpecError
        Matplotlib is missing.
    """
    data = io.BytesIO()
    with _empty_figure() as canvas:
        draw(canvas)
        canvas.savefig(data, format="png", metadata=_METADATA[".png"])
        width = round(canvas.get_figwidth() * SCREEN_DOTS)
    return Picture(png=data.getvalue(), width=width)


@contextmanager
def _empty_figure() -> Iterator[Figure]:
    """A figure of the common style, whatever the user's matplotlibrc says; the style holds within."""
    try:
        from matplotlib import figure, style  # slow, and not everybody has it
    except ImportError as error:
        raise SpecError(f"plots need matplotlib: pip install 'pd-planner[report]' ({error})") from None
    with warnings.catch_warnings(), style.context(["default", _STYLE]):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of names in other scripts
        yield figure.Figure(dpi=DOTS)
