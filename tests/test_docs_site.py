"""The documentation builds into a site without a broken link or anchor, and its pages ask the network for nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"']?(https?:)?//|<link\b[^>]*\bhref=[\"']?(https?:)?//|url\([\"']?(https?:)?//"
)


def test_the_site_builds_without_a_warning_and_has_what_it_should(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr  # --strict: a warning is an error
    assert not (tmp_path / "404.html").exists()  # its links would lead nowhere from a disk
    asks_the_network_for_nothing(tmp_path)
    draws_formulas_and_links_labels(tmp_path)
    has_a_reference_made_from_the_code(tmp_path)
    has_files_of_the_repository_that_pages_link_to(tmp_path)


def asks_the_network_for_nothing(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 30
    for page in pages:
        found = FETCHED.search(page.read_text(encoding="utf-8"))
        assert found is None, f"{page.relative_to(site)}: {found}"


def draws_formulas_and_links_labels(site: Path) -> None:
    theory = (site / "theory.html").read_text(encoding="utf-8")
    assert theory.count("<math ") > 500
    assert "arithmatex" not in theory
    assert "$<math" not in theory
    assert 'id="W5"' in theory
    assert (site / "assets/math.ttf").stat().st_size > 500_000
    assert 'href="../theory.html#W5"' in (site / "explanation/threat-model.html").read_text(encoding="utf-8")


def has_a_reference_made_from_the_code(site: Path) -> None:
    commands = (site / "reference/cli.html").read_text(encoding="utf-8")
    for words in ("plan", "run", "audit", "identity-pins", "compare"):
        assert f'id="lightdp-{words}"' in commands
    assert "--straggler-law" in commands
    settings = (site / "reference/configuration.html").read_text(encoding="utf-8")
    assert "<code>straggler_law</code>" in settings
    assert "<code>local_lr</code>" in settings
    api = (site / "reference/api.html").read_text(encoding="utf-8")
    assert 'id="lightdp.planning.Plan.noise_in_mean"' in api
    assert "&gt;&gt;&gt;" in api


def has_files_of_the_repository_that_pages_link_to(site: Path) -> None:
    assert "own_model" in (site / "repository/examples/own_model.py.html").read_text(encoding="utf-8")
    assert (site / "repository/CHANGELOG.html").is_file()
