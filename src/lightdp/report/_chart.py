"""How charts look, and how files to look at are written: whole or not at all."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from lightdp.errors import ArgumentError, MissingExtraError

try:
    import altair as alt
except ImportError:
    raise MissingExtraError("report", "A chart") from None

from collections.abc import Iterator, Mapping, Sequence

__all__ = ["FONT", "FORMATS", "LOOK", "SOFT", "Chart", "alt", "check_path", "data", "save", "whole"]

Chart: TypeAlias = alt.TopLevelMixin

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
SOFT = "#526077"
_SMALL = {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"}
_QUIET = {"labelColor": SOFT, "titleColor": SOFT, "gridColor": "#e2e8f0"}
_BARE = {"domain": False, "ticks": False, "labelPadding": 6}
LOOK: dict[str, Any] = {"font": FONT, "view": {"stroke": None}, "axis": _SMALL | _QUIET | _BARE, "legend": _SMALL}
"""The configuration of charts of runs and of compared schemes."""
# Arguments of altair's `save` for each suffix.
FORMATS: dict[str, dict[str, Any]] = {
    ".html": {"format": "html", "inline": True},
    ".png": {"format": "png", "scale_factor": 2.0},
    ".svg": {"format": "svg"},
}


def data(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """A chart of these rows, without marks."""
    return alt.Chart(alt.Data(values=list(rows)))


def check_path(path: Path, name: str) -> None:
    """Refuse, before any work, a path to which `save` could not write; errors speak of `name`."""
    if path.suffix not in FORMATS:
        raise ArgumentError(f"{name} must end in {', '.join(FORMATS)}, got {name}={str(path)!r}")
    if not path.parent.is_dir():
        raise ArgumentError(f"{name} must lie in an existing folder, got {name}={str(path)!r}")
    if path.is_dir():
        raise ArgumentError(f"{name} must be a file, got the folder {name}={str(path)!r}")


def save(chart: Chart, path: Path, name: str = "plot") -> None:
    """Write a chart as the suffix of `path` says: .html (self-contained, no network), .png or .svg.

    The file is there whole or as it was before.

    Args:
        chart: what to draw.
        path: the file.
        name: what errors call `path`.

    Raises:
        ArgumentError: the suffix is another one, or the folder does not exist or refuses the file.
    """
    with whole(path, name) as file:
        chart.save(str(file), **FORMATS[path.suffix])


@contextmanager
def whole(path: Path, name: str) -> Iterator[Path]:
    """A file to write that becomes `path` once it is whole; nothing is drawn for a path that cannot be written."""
    check_path(path, name)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".lightdp-") as folder:
            temporary = Path(folder) / path.name
            yield temporary
            temporary.replace(path)
    except OSError as error:
        raise ArgumentError(f"{name} must be writable, got {name}={str(path)!r}: {error.strerror}") from None
