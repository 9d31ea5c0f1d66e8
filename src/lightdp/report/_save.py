"""Write a chart to a file, whole or not at all."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    from lightdp.report._style import Chart

_FORMATS: dict[str, dict[str, Any]] = {
    ".html": {"format": "html", "inline": True},
    ".png": {"format": "png", "scale_factor": 2.0},
    ".svg": {"format": "svg"},
}


def check_path(path: Path, name: str) -> None:
    """Refuse, before any work, a path to which `save` could not write; errors speak of `name`."""
    if path.suffix not in _FORMATS:
        raise ArgumentError(f"{name} must end in {', '.join(_FORMATS)}, got {name}={str(path)!r}")
    if not path.parent.is_dir():
        raise ArgumentError(f"{name} must lie in an existing folder, got {name}={str(path)!r}")
    if path.is_dir():
        raise ArgumentError(f"{name} must be a file, got the folder {name}={str(path)!r}")


def save(chart: Chart, path: Path, name: str = "plot") -> None:
    """Write `chart` as its suffix says: .html (self-contained, no network), .png or .svg; errors speak of `name`."""
    check_path(path, name)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".lightdp-") as folder:
            temporary = Path(folder) / path.name
            chart.save(str(temporary), **_FORMATS[path.suffix])
            temporary.replace(path)
    except OSError as error:
        raise ArgumentError(f"{name} must be writable, got {name}={str(path)!r}: {error.strerror}") from None
