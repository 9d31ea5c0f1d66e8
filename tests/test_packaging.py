"""What pyproject.toml allows and what constraints.txt pins go together."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def test_every_dependency_is_pinned_to_a_version_that_its_range_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    wanted = {found.name: found for found in map(Requirement, texts) if found.name != project["name"]}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pinned = dict(line.split("==") for line in lines)
    assert set(pinned) == set(wanted)
    for name, version in pinned.items():
        assert re.fullmatch(r"[0-9.]+(post\d+)?", version)
        assert wanted[name].specifier.contains(version), name


def test_ranges_of_what_users_bring_along_are_open() -> None:
    """An application has its own torch and its own flwr."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    ranges = {found.name: found.specifier for found in map(Requirement, [*extras["train"], *extras["flower"]])}
    assert all(ranges["torch"].contains(version) for version in ("2.6.0", "2.13.0", "2.15.0"))
    assert all(ranges["flwr"].contains(version) for version in ("1.41.0", "1.42.0"))
    assert not ranges["flwr"].contains("1.43.0")


@pytest.mark.parametrize("package", ["lightdp", "lightdp_lab"])
def test_files_that_are_no_modules_are_in_the_package(package: str) -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][package]
    folder = ROOT / "src" / package
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    others = {name for name in there if not name.endswith((".py", ".pyc", ".so", ".c", ".h"))}
    assert set(data) == others


def test_entry_points_lead_to_what_they_promise() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert set(points) == {"lightdp.commands", "lightdp.schemes", "lightdp.channels"}
    for group, names in points.items():
        for name, value in names.items():
            assert EntryPoint(name, value, group).load()
