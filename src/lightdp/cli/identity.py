"""`lightdp identity`: long-lived keys of nodes, and the pins by which their peers know them.

`new` writes a private key that stays on its machine, and prints the line that others pin. `show` prints that line
again. `pins` reads such lines of all members and makes one file of pins, or says what is wrong with them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from lightdp._files import contents, durable
from lightdp.errors import ArgumentError
from lightdp.keys import Identity, Pins

HELP = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
_LARGEST = 2**24  # bytes of a file of pins: about 130 for each member
_STDIN = Path("-")

command = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", help=HELP)

_Name = Annotated[str, typer.Option(help="Name of the node in rosters, as its lightdp-name.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_File = Annotated[Path, typer.Argument(help="File of the private key.")]


@command.command()
def new(*, path: _File, name: _Name, as_json: _Json = False) -> None:
    """Make a private key, readable by its owner alone, and print the line to pin; an existing file is kept."""
    line = _line(name, bytes(32))  # refuses a wrong name before a file is made
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"PATH must be in a folder that exists, got PATH={str(path)!r}")
    identity = Identity.generate()
    identity.save(path)
    line = _line(name, identity.public)
    typer.echo(json.dumps({"path": str(path), "name": name, "public": identity.public.hex()}) if as_json else line)
    typer.echo(f"{path} holds a private key: keep it on this machine, and never commit or send it", err=True)


@command.command()
def show(
    *,
    path: _File,
    name: Annotated[str | None, typer.Option(help="Name of the node, for a line to pin.")] = None,
    as_json: _Json = False,
) -> None:
    """Print the public half of a key: the line to pin or, without a name, 64 hexadecimal digits."""
    public = Identity.load(path).public
    line = public.hex() if name is None else _line(name, public)
    typer.echo(json.dumps({"path": str(path), "name": name, "public": public.hex()}) if as_json else line)


@command.command()
def pins(
    *,
    files: Annotated[list[Path], typer.Argument(help="Files of lines to pin; - reads them.")],
    out: Annotated[Path | None, typer.Option(help="Write the pins to FILE, also if it is one of FILES.")] = None,
    as_json: _Json = False,
) -> None:
    """Put lines of several files together into one file of pins, or name what is wrong with them."""
    places: dict[str, tuple[str, str]] = {}  # by name: its line, with its comment, and where that stands
    owners: dict[bytes, str] = {}
    for file in files:
        for number, line in enumerate(_text(file).splitlines(), start=1):
            place = f"{file}, line {number}"
            for name, public in _parsed(line, place).items():
                known = owners.setdefault(public, name)
                if known != name:
                    raise ArgumentError(f"{place}: {name} has the identity of {known} ({places[known][1]})")
                before, where = places.setdefault(name, (line.strip(), place))
                if before.split()[1] != public.hex():
                    raise ArgumentError(f"{place}: {name} has another identity in {where}")
    found = Pins.parse("\n".join(line for line, _ in places.values()))  # what nodes will read
    text = "".join(f"{places[name][0]}\n" for name in sorted(found.identities))
    if out is not None:
        with durable(out) as written:
            written.write(text.encode("ascii"))
        typer.echo(f"wrote {len(found.identities)} pins to {out}", err=True)
    if as_json:
        typer.echo(json.dumps({"pins": {name: found.identities[name].hex() for name in sorted(found.identities)}}))
    elif out is None:
        typer.echo(text, nl=False)


def _line(name: str, public: bytes) -> str:
    """What others pin; refuses a name that pins cannot hold."""
    line = f"{name} {public.hex()}"
    try:
        Pins.parse(line)
    except ArgumentError:
        form = "1 to 64 letters, digits or ._@+- (not first)"
        raise ArgumentError(f"name must be {form}, got name={name!r}") from None
    return line


def _text(file: Path) -> str:
    if file == _STDIN:
        return sys.stdin.read(_LARGEST)
    data = contents(file, limit=_LARGEST)
    if b"PRIVATE KEY" in data:
        raise ArgumentError(f"{file} holds a private key, which is not shared: `lightdp identity show` prints its line")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise ArgumentError(f"FILES must be ASCII text, got {str(file)!r}") from None


def _parsed(line: str, place: str) -> dict[str, bytes]:
    try:
        return dict(Pins.parse(line).identities)
    except ArgumentError:
        raise ArgumentError(f"{place}: must be 'name 64-lower-case-hex-digits'") from None  # the line is not quoted
