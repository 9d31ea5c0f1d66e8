"""Flags from a dataclass of settings: names, types, defaults, help texts and groups are stated once, at its fields.

>>> from lightdp._settings import setting
>>> @dataclasses.dataclass(frozen=True)
... class Place:
...     east: int = setting("Metres to the east.")
...     north: int = setting("Metres to the north.", 0)
>>> def go(flags: dict[str, Any], *, fast: Annotated[bool, typer.Option("--fast")] = False) -> None:
...     print(flags, fast)
>>> app = typer.Typer()
>>> _ = app.command()(with_settings(go, Place))
>>> app(["--east", "3"], standalone_mode=False)
{'east': 3} False
"""

from __future__ import annotations

import dataclasses
import inspect
import shlex
import sys
from collections.abc import Callable, Collection
from typing import Annotated, Any, get_args, get_type_hints

import click
import typer
from click.core import ParameterSource

GRAPH = "Who shares noise with whom: complete, circulant:DEGREE[:SEED], random:DEGREE (an expander), or auto."
"""Help text of `--graph`, which stands for the settings degree and graph_seed."""


def command_line() -> str:
    """The command that is running, as one types it into a shell."""
    return shlex.join(["lightdp", *sys.argv[1:]])


def with_settings(
    function: Callable[..., None], *settings: type, leave_out: Collection[str] = (), optional: bool = False
) -> Callable[..., None]:
    """A command with a flag for each field of `settings`, and then the options of `function` itself.

    A field without a default becomes a required flag, a Literal a choice, a bool a pair of flags, and a value that may
    be written as text is text; the group in its metadata (see `lightdp._settings.setting`) is a panel of the help page.
    Nothing is read from docstrings, so the command works under `python -OO`.

    Args:
        function: takes the flags that were given, as one dict of keyword arguments for `settings`, and keyword-only
            options of its own, annotated for typer.
        *settings: dataclasses whose fields were made by `lightdp._settings.setting` or `like`, with different names.
        leave_out: fields that get no flag here.
        optional: whether fields without a default may be left out too; `function` then checks what it needs.
    """
    hints = {name: kind for each in settings for name, kind in get_type_hints(each).items()}
    every = [field for each in settings for field in dataclasses.fields(each)]
    fields = [field for field in every if field.init and field.name not in leave_out]
    flags = [_flag(field, hints[field.name], optional=optional) for field in fields]
    types = get_type_hints(function, include_extras=True)
    _, *options = inspect.signature(function).parameters.values()
    own = [option.replace(annotation=types[option.name]) for option in options]

    def command(**arguments: Any) -> None:  # noqa: ANN401  checked by `settings`
        source = click.get_current_context().get_parameter_source
        flagged = {field.name: arguments.pop(field.name) for field in fields}
        given = {name: value for name, value in flagged.items() if source(name) is not ParameterSource.DEFAULT}
        function(given, **arguments)

    command.__signature__ = inspect.Signature([*flags, *own])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in [*flags, *own]}
    return command


def _flag(field: dataclasses.Field[Any], kind: Any, *, optional: bool) -> inspect.Parameter:  # noqa: ANN401  a type
    """The field as a keyword of a function that typer reads."""
    if str in get_args(kind) and type(None) not in get_args(kind):
        kind = str
    option = typer.Option(help=field.metadata["help"], rich_help_panel=field.metadata["group"])
    kind = field.metadata["flag"] or kind
    default = field.default
    if default is dataclasses.MISSING:
        default, kind = (None, kind | None) if optional else (inspect.Parameter.empty, kind)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
