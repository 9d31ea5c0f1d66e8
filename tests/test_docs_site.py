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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr  # --strict: a warning is an error
    return folder


def test_the_site_builds_and_asks_the_network_for_nothing(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 30
    for page in pages:
        found = FETCHED.search(page.read_text(encoding="utf-8"))
        assert found is None, f"{page.relative_to(site)}: {found}"


def test_formulas_are_drawn_and_labels_lead_to_their_statements(site: Path) -> None:
    theory = (site / "theory.html").read_text(encoding="utf-8")
    assert theory.count("<math ") > 500
    assert "arithmatex" not in theory
    assert 'id="W5"' in theory
    assert (site / "assets/math.ttf").stat().st_size > 500_000
    assert 'href="../theory.html#W5"' in (site / "explanation/threat-model.html").read_text(encoding="utf-8")


def test_the_reference_is_made_from_the_code(site: Path) -> None:
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


def test_files_of_the_repository_that_pages_link_to_are_on_the_site(site: Path) -> None:
    assert "own_model" in (site / "repository/examples/own_model.py.html").read_text(encoding="utf-8")
    assert (site / "repository/CHANGELOG.html").is_file()
