"""Pictures that can be read in print and by the colour-blind: the palette, and files from axes."""

from pathlib import Path
from typing import Any, Callable, Sequence, Tuple

from .errors import InvalidArgument

__all__ = ["COLOURS", "HATCHES", "SETTINGS", "STYLES", "draw", "need_matplotlib"]

# Okabe and Ito's palette, told apart with the usual colour blindnesses; line styles and hatches repeat
# the distinction for greyscale print.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
HATCHES = ("", "///", "...", "xx", "\\\\\\", "++", "oo")

SETTINGS: Any = {
    "svg.hashsalt": "gradwire",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_ENDINGS = (".svg", ".png", ".pdf")


def need_matplotlib(path: str, option: str = "--plot") -> None:
    """Raises InvalidArgument where `path` cannot be drawn: better before the work than after it."""
    if Path(path).suffix.lower() not in _ENDINGS:
        raise InvalidArgument(f"{option}: '{path}', expected a file that ends in {', '.join(_ENDINGS)}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise InvalidArgument(
            f"{option}: {path} needs matplotlib ({error}): pip install 'gradwire[bench]', or matplotlib"
        ) from None


Panel = Callable[[Any], None]  #: draws into the axes that it is given


def draw(path: str, panels: Sequence[Panel], title: str, size: Tuple[float, float]) -> None:
    """Draws panels side by side, `size` inches each, into a .svg, .png or .pdf; the same panels make
    the same bytes. Raises InvalidArgument where the file cannot be written."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(size[0] * len(panels), size[1]), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
            panel(axes)
        figure.suptitle(title, fontsize=10)
        dated = "CreationDate" if path.lower().endswith(".pdf") else "Date"
        metadata = {} if path.lower().endswith(".png") else {dated: None}
        try:
            figure.savefig(path, dpi=150, metadata=metadata)
        except OSError as error:
            raise InvalidArgument(f"--plot: {path}: {error.strerror or error}") from None
