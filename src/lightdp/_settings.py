"""Settings listed once: what a frozen dataclass says of its fields becomes flags, TOML keys and help texts."""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from lightdp.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

P = ParamSpec("P")
R = TypeVar("R")


def setting(
    text: str,
    default: Any = dataclasses.MISSING,  # noqa: ANN401  as `field`
    *,
    group: str = "Settings",
    flag: type | None = None,
) -> Any:  # noqa: ANN401  as `field`
    """A field of a dataclass of settings: its help text, its default, and the group of flags it belongs to.

    `flag` is the type of its flag, where the field takes more than a command line can say.
    """
    return dataclasses.field(default=default, metadata={"help": text, "group": group, "flag": flag})


def like(owner: type, name: str, default: Any = dataclasses.MISSING) -> Any:  # noqa: ANN401  as `field`
    """The same setting as the field `name` of `owner`, said once there, with a default of its own."""
    (found,) = (field for field in dataclasses.fields(owner) if field.name == name)
    return dataclasses.field(default=default, metadata=found.metadata)


def takes(owner: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Decorates a function that takes the fields of `owner` as keywords, so that types, editors and help show them."""

    def decorated(function: Callable[..., R]) -> Callable[P, R]:
        function.__signature__ = inspect.signature(owner).replace(  # type: ignore[attr-defined]
            return_annotation=inspect.signature(function).return_annotation
        )
        return function

    return decorated


def read_toml(owner: type, path: Path) -> dict[str, Any]:
    """The settings of a TOML file, each a field of `owner`; hyphens, as in flags, are as good as underscores."""
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError(f"config must be a readable TOML file, got config={str(path)!r}: {error}") from None
    found = {name.replace("-", "_"): value for name, value in written.items()}
    if len(found) < len(written):
        raise ArgumentError(f"config must say each name once, got one with hyphens and with underscores in {path}")
    unknown = sorted(set(found) - {field.name for field in dataclasses.fields(owner)})
    if unknown:
        raise ArgumentError(f"config must have known names only, got {', '.join(unknown)} in {path}")
    return found
