"""Examples in docstrings print what they show."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import lightdp
import lightdp_lab
from lightdp.errors import MissingExtraError

EXTRAS = {"torch", "sklearn", "altair", "vl_convert", "flwr", "cvxpy", "gmpy2", "tenseal"}


def modules_with_examples() -> list[str]:
    found = []
    for package in (lightdp, lightdp_lab):
        root = Path(package.__path__[0])
        for file in sorted(root.rglob("*.py")):
            if ">>>" in file.read_text(encoding="utf-8"):
                parts = file.relative_to(root.parent).with_suffix("").parts
                found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_in_docstrings_print_what_they_show(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        module = import_module(name)
    except ImportError as error:
        if not isinstance(error, MissingExtraError) and (error.name or "").partition(".")[0] not in EXTRAS:
            raise
        pytest.skip(str(error))
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0


def test_the_front_door_has_examples() -> None:
    assert {"lightdp", "lightdp.errors"} <= set(modules_with_examples())
