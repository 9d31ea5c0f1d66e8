"""How charts look, and how files to look at are written: whole or not at all."""

from __future__ import annotations

import math
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from lightdp.errors import ArgumentError, MissingExtraError

try:
    import altair as alt
except ImportError:
    raise MissingExtraError("report", "A chart") from None

from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "FAINT", "FONT", "HEAD", "LOOK", "PAGES", "PICTURES", "SOFT", "SUFFIXES", "TONES", "Chart", "alt", "apart",
    "check_path", "data", "decades", "draw", "heading", "line_names", "save", "sheet", "whole", "within",
]  # fmt: skip

Chart: TypeAlias = alt.TopLevelMixin

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
SOFT, FAINT = "#526077", "#94a3b8"
"""Colours of words that are not data, and of rules that mark a place."""
TONES = {
    "blue": "#4747cd", "violet": "#a281e8", "orange": "#c35906", "red": "#8e2b29", "teal": "#257b6a",
    "grey": "#a3a5ad", "sand": "#b4a481",
}  # fmt: skip
"""Colours of what is no scheme, which has its own (`lightdp.schemes`); told apart without red or green, too."""
_SMALL = {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"}
_QUIET = {"labelColor": SOFT, "titleColor": SOFT, "gridColor": "#e2e8f0"}
_BARE = {"domain": False, "ticks": False, "labelPadding": 6, "tickCount": 5}
LOOK: dict[str, Any] = {
    "font": FONT, "view": {"stroke": None}, "axis": _SMALL | _QUIET | _BARE,
    "legend": _SMALL | {"labelColor": SOFT, "titleColor": SOFT, "labelLimit": 240},
    "title": {"anchor": "start", "fontSize": 13, "subtitleColor": SOFT, "subtitleFontSize": 11.5, "offset": 10},
}  # fmt: skip
"""The configuration of all our charts."""
# Arguments of altair's `save` for each suffix of a picture; .html is a page.
PICTURES: dict[str, dict[str, Any]] = {
    ".png": {"format": "png", "scale_factor": 2.0},
    ".svg": {"format": "svg"},
}
PAGES = (".html",)
SUFFIXES = (*PAGES, *PICTURES)
_TEXT = b"tEXtSoftware\0lightdp"
_MARKS = {
    ".html": b"<meta name=lightdp ",
    ".svg": b"<!--lightdp-->",
    ".png": (len(_TEXT) - 4).to_bytes(4) + _TEXT + zlib.crc32(_TEXT).to_bytes(4),  # a chunk
}
HEAD = 2000
"""Bytes at the start of a file in which its mark stands, and of a page its kind and title."""
_IHDR_ENDS = 33  # of a .png file
_LABEL = 13.0  # pixels between two names at the ends of lines
_LONGEST = 200  # pixels of a name


def data(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """A chart of these rows, without marks."""
    return alt.Chart(alt.Data(values=list(rows)))


def within(low: float, high: float, **more: Any) -> alt.Scale:  # noqa: ANN401  as `alt.Scale`
    """A scale from `low` to `high` and no further."""
    return alt.Scale(domain=[low, high], nice=False, **more)


def decades(low: float, high: float) -> list[float]:
    """Few ticks of a logarithmic axis: powers of ten, and 2 and 5 times these where there is room.

    >>> decades(0.15, 12), decades(0.001, 2000)[:3]
    ([0.2, 0.5, 1.0, 2.0, 5.0, 10.0], [0.001, 0.01, 0.1])
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if high < 200 * low else (1,)
    ticks = [float(f"{step}e{power}") for power in range(first, last + 1) for step in steps]
    return [tick for tick in ticks if low <= tick <= high]


def heading(text: str, *lines: str, size: int = 17) -> alt.Title:
    """The title of a sheet or a panel, with smaller lines below it."""
    return alt.Title(text, subtitle=list(lines), fontSize=size, offset=12)


def sheet(chart: Any) -> Chart:  # noqa: ANN401  any chart of altair that can be configured
    """A chart as a picture: our look, on white, with a margin."""
    return chart.configure(**LOOK, padding=20, background="white")


def line_names(
    ends: Sequence[Mapping[str, Any]], scale: tuple[float, float], height: float, *, log: bool = False
) -> alt.Chart:
    """The names of lines at the right edge of a chart, beside their last points and apart from each other.

    Args:
        ends: "name", "value" (of the last point) and "colour" of each line; "bold" if it is to be seen first.
        scale: lowest and highest value of the vertical axis.
        height: of the chart in pixels.
        log: whether the axis is logarithmic.
    """
    low, high = (math.log(end) for end in scale) if log else scale
    placed = sorted(ends, key=lambda end: -end["value"])
    wanted = [height * (high - (math.log(end["value"]) if log else end["value"])) / (high - low) for end in placed]
    rows = [
        {"name": end["name"], "colour": end["colour"], "bold": bool(end.get("bold")), "place": round(place, 1)}
        for end, place in zip(placed, apart(wanted, height), strict=True)
    ]
    words = data(rows).mark_text(align="left", baseline="middle", dx=8, fontSize=11, limit=_LONGEST,
                                  fontWeight=alt.expr("datum.bold ? 'bold' : 'normal'"))  # fmt: skip
    return words.encode(
        x=alt.value("width"), y=alt.Y("place:Q", scale=None, axis=None), text="name:N",
        color=alt.Color("colour:N", scale=None, legend=None),
    )  # fmt: skip


def apart(heights: Sequence[float], height: float) -> list[float]:
    """Ascending places in 0..height, a line of text apart and as near as that allows to the ascending ones wanted.

    Names that do not fit in `height` reach below it.
    """
    groups: list[tuple[float, int]] = []  # mean of what is wanted, less the lines above, and how many
    for above, wanted in enumerate(heights):
        groups.append((wanted - above * _LABEL, 1))
        while len(groups) > 1 and groups[-2][0] > groups[-1][0]:
            (first, many), (second, few) = groups[-2:]
            groups[-2:] = [((many * first + few * second) / (many + few), many + few)]
    most = max(height - (len(heights) - 1) * _LABEL, 0.0)
    starts = [min(max(start, 0.0), most) for start, count in groups for _ in range(count)]
    return [start + above * _LABEL for above, start in enumerate(starts)]


def check_path(path: Path, name: str, suffixes: Sequence[str] = SUFFIXES, *, overwrite: bool = False) -> None:
    """Refuse, before any work, a path to which no page or picture could be written, or that holds something else.

    Args:
        path: the file.
        name: what errors call it.
        suffixes: those it may have.
        overwrite: whether it may be any file, which is then replaced.

    Raises:
        ArgumentError: it has another suffix, its folder does not exist, it is a folder, or a file that is no such page
            or picture.
    """
    if path.suffix not in suffixes:
        raise ArgumentError(f"{name} must end in {', '.join(suffixes)}, got {name}={str(path)!r}")
    if not path.parent.is_dir():
        raise ArgumentError(f"{name} must lie in an existing folder, got {name}={str(path)!r}")
    if path.is_dir():
        raise ArgumentError(f"{name} must be a file, got the folder {name}={str(path)!r}")
    if path.is_file() and not overwrite and not _is_ours(path):
        raise ArgumentError(
            f"{name} must be new, or a page or picture of lightdp: remove this file or choose another name, "
            f"got {name}={str(path)!r}"
        )


def _is_ours(path: Path) -> bool:
    """Whether a file has the mark of those that are written here; an empty one may be filled."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return True  # whoever writes will say why not
    return not head or _MARKS[path.suffix] in head


def save(chart: Chart, path: Path, name: str = "plot") -> None:
    """Write a chart as the suffix of `path` says: .png or .svg. The file is there whole or as it was before.

    Args:
        chart: what to draw.
        path: the file.
        name: what errors call `path`.

    Raises:
        ArgumentError: the suffix is another one, or the folder does not exist or refuses the file.
    """
    with whole(path, name, [*PICTURES]) as file:
        draw(chart, file)


def draw(chart: Chart, file: Path) -> None:
    """A chart into a file that `whole` gave, with the mark by which it may be replaced later."""
    chart.save(str(file), **PICTURES[file.suffix])
    drawn = file.read_bytes()
    head = _IHDR_ENDS if file.suffix == ".png" else drawn.index(b">") + 1
    file.write_bytes(drawn[:head] + _MARKS[file.suffix] + drawn[head:])


@contextmanager
def whole(path: Path, name: str, suffixes: Sequence[str], *, overwrite: bool = False) -> Iterator[Path]:
    """A file to write that becomes `path` once it is whole; nothing is drawn for a path that `check_path` refuses."""
    check_path(path, name, suffixes, overwrite=overwrite)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".lightdp-") as folder:
            temporary = Path(folder) / path.name
            yield temporary
            temporary.replace(path)
    except OSError as error:
        raise ArgumentError(f"{name} must be writable, got {name}={str(path)!r}: {error.strerror}") from None
