"""Charts are packed without a loss: by the table in `packed`, and by page.js in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightdp.report import _packed
from lightdp.report._packed import packed
from support.run_logs import unpacked

PARTS = {
    "rows": [{"x": each, "y": "a long word", "z": [each, None]} for each in range(4)],
    "few": [{"x": 1}], "mixed": [{"x": 1}, {"y": 2}], "none": [], "empty": [{}, {}], "words": ["a", True, None, 0, 0.5],
    "marks": [{mark: each} for mark in "$*#=" for each in (1, [2, 3])], "marked": {"#": [{"x": 1, "*": 2}] * 9},
    "columns": [{"#": each, "x": 0} for each in range(9)], "apart": [{"x": {"$": each}} for each in range(9)],
}  # fmt: skip
AGAIN = {"part": PARTS, "deep": [PARTS, {"rows": PARTS["rows"]}], "kinds": [{"x": each} for each in (1, True, 1.0)]}
CHARTS = {"one": PARTS, "two": AGAIN, "three": [PARTS, PARTS]}


def test_charts_are_packed_without_a_loss() -> None:
    """Equal parts at several depths, rows of lists, and values that are equal as numbers but not as JSON."""
    found = packed(CHARTS)
    assert json.dumps(unpacked(json.loads(json.dumps(found)))) == json.dumps(CHARTS)
    assert json.dumps(found).count("a long word") == 1


def test_a_browser_unpacks_what_was_packed(chromium: Any, tmp_path: Path) -> None:
    code = Path(_packed.__file__).with_name("page.js").read_text(encoding="utf-8")
    file = tmp_path / "packed.html"
    file.write_text(
        f'<!doctype html><script type="application/json" id=specs>{json.dumps(packed(CHARTS))}</script>'
        f"<script>const drawn = []; const vegaEmbed = (id, spec) => drawn.push([id, spec]);</script>"
        f"<script>{code}</script>"
    )
    page = chromium.new_page()
    page.goto(file.as_uri())
    assert dict(page.evaluate("() => drawn")) == {f"#{name}": chart for name, chart in CHARTS.items()}
    page.close()
