"""Programs that cannot do their work in a test, because it takes minutes, a network, a superuser or another machine.

`support/docs.py` puts them on the path of the commands of a page. Each fails where the real one would refuse what it
is asked for, as far as that can be seen without doing it:

| program | what is checked |
| --- | --- |
| `lightdp compare`, `lightdp reproduce` but its `page`, and `lightdp` with a word in capitals, such as DIR | the real
  command reads its arguments, and is not run; `compare --json` prints the record that is kept |
| `lightdp ui` | is run, its link is opened, and Ctrl-C ends it with 0 |
| all other `lightdp` | is run |
| `flwr` | the real command reads its arguments; the app is there and has every key of `--run-config`; a key that is
  registered is there |
| `flower-supernode` | the real command reads its arguments, and lightdp the keys of `--node-config` |
| `make` | a dry run |
| `pip install` | the folder is a project and has the extras; the file of constraints is there |
| `systemctl`, `journalctl` | the units were copied to /etc/systemd/system |
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0


def lightdp(_: Path, words: list[str]) -> None:
    if not is_run(words):
        from lightdp.cli import app  # noqa: PLC0415  takes a while

        read(app, words)
        if words[0] == "compare" and "--json" in words:
            sys.stdout.write((ROOT / "benchmarks/records/compare.json").read_text(encoding="utf-8"))
    elif words[:1] == ["ui"]:
        look([sys.executable, "-m", "lightdp", *words, "--port", "0"])
    else:
        os.execv(sys.executable, [sys.executable, "-m", "lightdp", *words])  # noqa: S606  as the script does


def is_run(words: list[str]) -> bool:
    """Whether these arguments make `lightdp` do what a test can wait for."""
    slow = words[:1] == ["compare"] or (words[:1] == ["reproduce"] and words[1:] != ["page"])
    return not slow and not any(re.fullmatch("[A-Z]+", word) for word in words)


def look(command: list[str]) -> None:
    """Start a server of pages, open the link that it prints, and end it."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], WAIT_S)[0], "the server has not said anything"
            link = re.search(r"http://127\S+", process.stdout.readline())
            assert link is not None
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # the token becomes a cookie
            with browser.open(link[0], timeout=WAIT_S) as answer:
                assert b"lightdp" in answer.read()
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()


def read(app: Any, words: list[str]) -> dict[str, Any]:
    """What a command of click makes of its arguments; it is not run."""
    import click  # noqa: PLC0415  takes a while

    found: dict[str, Any] = {}
    with patch.object(click.Command, "invoke", lambda _, context: found.update(context.params)):
        app(words, standalone_mode=False)
    return found


def flwr(_: Path, words: list[str]) -> None:
    import typer  # noqa: PLC0415  takes a while
    from flwr.cli.app import app  # noqa: PLC0415  likewise
    from flwr.common.config import flatten_dict, parse_config_args  # noqa: PLC0415  likewise

    asked = read(typer.main.get_command(app), words)
    if words[0] == "run":
        project = tomllib.loads((Path(asked["app"]) / "pyproject.toml").read_text(encoding="utf-8"))
        known = flatten_dict(project["tool"]["flwr"]["app"]["config"])
        unknown = set(parse_config_args(asked["run_config_overrides"])) - set(known)
        assert unknown == set(), f"{asked['app']} has no setting {unknown}"
    else:
        assert words[:2] == ["supernode", "register"]
        assert Path(words[2]).read_text(encoding="utf-8").startswith("ecdsa-sha2-nistp384 ")


def flower_supernode(_: Path, words: list[str]) -> None:
    from flwr.common.config import parse_config_args  # noqa: PLC0415  takes a while
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode  # noqa: PLC0415  likewise

    from lightdp.flower._settings import Settings  # noqa: PLC0415  likewise

    asked = _parse_args_run_supernode().parse_args(words)
    given = {key.removeprefix("lightdp-").replace("-", "_") for key in parse_config_args([asked.node_config])}
    unknown, needed = given - set(Settings.__dataclass_fields__), {"unit", "max_epsilon", "max_delta", "state"}
    assert unknown == set(), f"lightdp has no setting {unknown}"
    assert given >= needed, f"a node needs {needed}"


def make(place: Path, words: list[str]) -> None:
    path = os.environ["PATH"].removeprefix(f"{place / 'programs'}{os.pathsep}")  # this one is not meant
    program = shutil.which("make", path=path)
    assert program is not None, "make is not installed"
    subprocess.run([program, "--dry-run", "--directory", ROOT, *words], check=True, stdout=subprocess.DEVNULL)
    Path(".venv/bin").mkdir(parents=True, exist_ok=True)
    Path(".venv/bin/activate").touch()


def pip(_: Path, words: list[str]) -> None:
    assert words[0] == "install"
    if words[1] == "-c":
        Path(words[2]).read_bytes()
        del words[1:3]
    [found] = (re.fullmatch(r"(\S+?)\[([\w,]+)\]", word) for word in words[1:])
    assert found is not None
    project = tomllib.loads((Path(found[1]) / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    unknown = set(found[2].split(",")) - set(project["optional-dependencies"])
    assert unknown == set(), f"{found[1]} has no extra {unknown}"


def systemctl(place: Path, words: list[str]) -> None:
    if words != ["daemon-reload"]:
        verb, option, unit = words
        assert (verb, option) == ("enable", "--now")
        (place / f"etc/systemd/system/{unit}.service").read_bytes()


def journalctl(place: Path, words: list[str]) -> None:
    option, unit, follow = words
    assert (option, follow) == ("-u", "-f")
    (place / f"etc/systemd/system/{unit}.service").read_bytes()


PROGRAMS: dict[str, Callable[[Path, list[str]], None]] = {
    "lightdp": lightdp,
    "flwr": flwr,
    "flower-supernode": flower_supernode,
    "make": make,
    "pip": pip,
    "systemctl": systemctl,
    "journalctl": journalctl,
}


if __name__ == "__main__":
    PROGRAMS[sys.argv[2]](Path(sys.argv[1]), sys.argv[3:])
