"""The rooms of the house: top-level modules and packages of `lightdp` and `lightdp_lab`. What is private stays inside.

import-linter checks which room may import which; this checks that no room uses a private name of another.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parents[1] / "src"
SHARED = {"lightdp._files", "lightdp._settings", "lightdp._validate"}  # internal to the house, not to a room
KERNELS = {
    "lightdp.drawn",
    "lightdp.keys",
    "lightdp.stream",
    "lightdp.wire",
}  # the rooms to which lightdp._native belongs


def room(name: str) -> str:
    return ".".join(name.split(".")[:2])


def private(user: str, used: str) -> bool:
    """Whether `used`, a dotted name, is private to a room other than that of the module `user`."""
    parts = used.split(".")
    hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    shared = room(used) in SHARED and not any(part.startswith("_") for part in parts[2:])
    own = room(user) == room(used) or (room(used) == "lightdp._native" and room(user) in KERNELS)
    return parts[0] in ("lightdp", "lightdp_lab") and hidden and not shared and not own


def uses(code: str) -> Iterator[str]:
    """The dotted names that a module imports, and the attributes that it takes from imported modules."""
    tree, bound = ast.parse(code), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name
                bound[name.asname or name.name.partition(".")[0]] = (
                    name.name if name.asname else name.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for name in node.names:
                yield f"{node.module}.{name.name}"
                bound[name.asname or name.name] = f"{node.module}.{name.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in bound:
            yield f"{bound[node.value.id]}.{node.attr}"


def found() -> set[tuple[str, str]]:
    result = set()
    for path in sorted(SOURCE.rglob("*.py")):
        user = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        result |= {(room(user), used) for used in uses(path.read_text(encoding="utf-8")) if private(user, used)}
    return result


def test_no_room_uses_a_private_name_of_another() -> None:
    assert sorted(found()) == []


@pytest.mark.parametrize(
    "code",
    [
        "from lightdp.planning._plan import Plan",
        "from lightdp.planning import _plan",
        "import lightdp.planning._plan",
        "from lightdp import _native",
        "from lightdp import stream\nstream._COMPILED",
        "from lightdp import stream as s\ndef f():\n    return s._COMPILED",
        "if TYPE_CHECKING:\n    from lightdp.keys._roster import Roster",
        "from lightdp._validate import _secret",
    ],
)
def test_private_names_are_found(code: str) -> None:
    assert any(private("lightdp.masks", used) for used in uses(code))


@pytest.mark.parametrize(
    ("user", "code"),
    [
        ("lightdp.wire.messages", "from lightdp._validate import integer"),
        ("lightdp.wire.messages", "from lightdp.wire._inner import _name"),
        ("lightdp.wire.messages", "from lightdp.keys import Roster\nRoster.__name__"),
        ("lightdp.wire.packing", "from lightdp._native import kernel"),
        ("lightdp.masks", "import numpy\nnumpy._core"),
    ],
)
def test_own_and_shared_names_are_fine(user: str, code: str) -> None:
    assert not any(private(user, used) for used in uses(code))
