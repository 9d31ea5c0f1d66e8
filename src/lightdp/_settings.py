"""Settings listed once: the fields of a frozen dataclass become flags, TOML keys and help texts."""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from lightdp.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_NONE = dataclasses.MISSING


def setting(text: str, default: Any = _NONE, *, group: str = "Settings", flag: type | None = None) -> Any:  # noqa: ANN401
    """A field of a dataclass of settings.

    Args:
        text: its help text.
        default: its default; without one, the setting is required.
        group: the group of flags on the help page.
        flag: the type of its flag, where the field takes more than a command line can express.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Oven:
    ...     degrees: int = setting("Temperature.", 200)
    >>> Oven().degrees, dataclasses.fields(Oven)[0].metadata["help"]
    (200, 'Temperature.')
    """
    return dataclasses.field(default=default, metadata={"help": text, "group": group, "flag": flag})


def described(owner: type[T]) -> type[T]:
    """Decorates a dataclass of settings: its docstring ends with what its fields say of themselves."""
    if owner.__doc__ is not None:  # as under `python -OO`
        lines = [f"        {each.name}: {each.metadata['help']}" for each in dataclasses.fields(owner)]  # type: ignore[arg-type]
        owner.__doc__ = "\n".join([owner.__doc__.rstrip(), "", "    Attributes:", *lines, "    "])
    return owner


def like(owner: type, name: str, default: Any = _NONE) -> Any:  # noqa: ANN401  as `field`
    """The same setting as field `name` of `owner`, with a default of its own."""
    (found,) = (field for field in dataclasses.fields(owner) if field.name == name)
    return dataclasses.field(default=default, metadata=found.metadata)


def takes(owner: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Decorates a function that takes the fields of `owner` as keywords, so that types, editors and help show them."""

    def decorated(function: Callable[..., R]) -> Callable[P, R]:
        result = inspect.signature(function).return_annotation
        function.__signature__ = inspect.signature(owner).replace(return_annotation=result)  # type: ignore[attr-defined]
        return function

    return decorated


def read_toml(owner: type, path: Path) -> dict[str, Any]:
    """The settings of a TOML file, each a field of `owner`; names may have hyphens, as flags do.

    Raises:
        ArgumentError: the file is not readable TOML, or has a name that is unknown or occurs twice.
    """
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError(f"config must be a readable TOML file, got config={str(path)!r}: {error}") from None
    found = {name.replace("-", "_"): value for name, value in written.items()}
    if len(found) < len(written):
        raise ArgumentError(f"config must say each name once, got one with hyphens and with underscores in {path}")
    if unknown := sorted(set(found) - {field.name for field in dataclasses.fields(owner)}):
        raise ArgumentError(f"config must have known names only, got {', '.join(unknown)} in {path}")
    return found
