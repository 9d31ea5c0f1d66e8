"""The suite itself: what is marked slow exists, and what is quick still covers every room."""

from __future__ import annotations

import re
from pathlib import Path

from support import slow

TESTS = Path(__file__).parent


def test_every_slow_test_and_file_exists() -> None:
    files = {path.name: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py")}
    assert set(files) >= slow.FILES
    named = set(re.findall(r"def (test_\w+)\(", "\n".join(files.values()))) | {"runTest"}
    assert {name.partition("[")[0] for name in slow.TESTS} <= named


def test_every_folder_of_tests_has_quick_ones() -> None:
    for folder in {path.parent for path in TESTS.rglob("test_*.py")}:
        quick = [path for path in folder.glob("test_*.py") if path.name not in slow.FILES]
        named = {name for path in quick for name in re.findall(r"def (test_\w+)\(", path.read_text(encoding="utf-8"))}
        assert len(named - slow.TESTS) > 2 * len(named & slow.TESTS), folder.name
