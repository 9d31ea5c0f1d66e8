"""Pages of the documentation, and how what they show is run.

A page is followed from its first block to its last, in a clone of its own (a copy of what pages name, beside a fresh
HOME), by language:

| block | what is done |
| --- | --- |
| `sh` | runs in bash, which stops at the first command that fails; folder and exported variables last for the page |
| `console` | so does each command after `$ `; output that is shown must be as printed, `...` stands for any lines |
| `python` | runs in the test's process, with names of its own; `print(x)  # 1.23` must print what rounds to that |
| any with a `title` | is the file of that name |
| others | are only read |

`lightdp run` and `lightdp report` are called in the test's process, which imports what they need once.
`/etc` and `/var` are folders beside the clone. What pages show was printed on a CPU: GPUs are hidden.
A few programs cannot do their work in a test:
`support/stand_ins.py` takes their place and checks what they are asked for. Where a program that has no stand-in is not
installed, the page is skipped.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from lightdp.cli import main
from support import stand_ins
from support.node_states import save_ann, save_node_7

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
BASH = shutil.which("bash") or "bash"
LANGUAGES = {"console", "csv", "python", "sh", "text", "toml", "yaml"}

_BLOCK = re.compile(r'^```(\w*)(?: title="([^"\n]+)")?\n(.*?)^```$', flags=re.MULTILINE | re.DOTALL)
_CLONED = ("benchmarks", "docs", "examples", "results", "constraints.txt", "pyproject.toml")
_FIGURE = re.compile(r"^print\((.+)\)  # (\d+\.(\d+)).*$", flags=re.MULTILINE)
_SYSTEM = re.compile(r"(?<![\w.~-])/(etc|var)/")
_NEEDED = re.compile(r"^(?:\$ )?(make|ssh-keygen)\b", flags=re.MULTILINE)
"""Programs that not every machine has: `make` reads the Makefile for its stand-in."""
_NOT_INHERITED = re.compile("BROWSER|COLUMNS|FLWR_.*|LIGHTDP_.*|MAKE.*|MFLAGS|XDG_.*")
_BEFORE = {"membership.md": (ROOT / "docs/how-to/operate.md",)}
"""What is followed before a page that goes on from there."""
_GIVEN = {"audit.md": save_ann, "operate.md": save_node_7}
"""What a page looks at and a training makes, which its commands cannot: they get the folder around the clone."""


@dataclass(frozen=True)
class Block:
    """What stands between two fences.

    Attributes:
        language: of the opening fence.
        title: the name of the file that it is, or "".
        text: the lines between them.
    """

    language: str
    title: str
    text: str


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """The blocks of a page, or those of one language, in order."""
    found = [Block(*each) for each in _BLOCK.findall(page.read_text(encoding="utf-8"))]
    return [block for block in found if language in (None, block.language)]


class Reader:
    """Somebody who follows a page in a clone.

    Args:
        page: the page.
        place: an empty folder.

    Attributes:
        clone: the folder in which the page begins.
        printed: what each `sh` block has printed.
    """

    def __init__(self, page: Path, place: Path) -> None:
        self.page, self.place, self.clone = page, place, place / "clone"
        self.printed: list[str] = []
        for name in ("clone", "home", "programs", "etc/systemd/system", "var/lib/lightdp"):
            (place / name).mkdir(parents=True)
        for name in _CLONED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, self.clone / name)
        for program in stand_ins.PROGRAMS:
            words = [sys.executable, stand_ins.__file__, str(place), program]
            (place / "programs" / program).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            (place / "programs" / program).chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if _NOT_INHERITED.fullmatch(name) is None}
        path = os.pathsep.join([str(place / "programs"), str(Path(sys.executable).parent), os.environ["PATH"]])
        self._variables = kept | {"HOME": str(place / "home"), "PATH": path, "BROWSER": "true %s"}
        self._variables |= {"CUDA_VISIBLE_DEVICES": ""}
        self._folder = self.clone

    def follow(self) -> None:
        """Run and write what the page shows, after what the page shows that it goes on from."""
        pages = (*_BEFORE.get(self.page.name, ()), self.page)
        commands = [block.text for page in pages for block in blocks(page) if block.language in ("console", "sh")]
        for program in _NEEDED.findall("\n".join(commands)):
            if shutil.which(program) is None:
                pytest.skip(f"{self.page.name} needs {program}")
        for page in pages:
            _GIVEN.get(page.name, lambda _: None)(self.place)
            for block in blocks(page):
                self._does(block)

    def _does(self, block: Block) -> None:
        if block.title != "":
            (self.clone / block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            self.printed.append(self._types(block.text))
        elif block.language == "console":
            self._compares(block.text)
        elif block.language == "python":
            self._executes(block.text)

    def _types(self, block: str, *, code: int = 0) -> str:
        """What commands print to standard output; they must end with this exit code."""
        printed, shell = "", ""
        for line in _SYSTEM.sub(rf"{self.place}/\1/", block).replace("\\\n", "").splitlines():
            words = _training(line)
            if words is None:
                shell += f"{line}\n"
            else:
                printed, shell = printed + self._asks_bash(shell) + self._trains(words), ""
        return (printed + self._asks_bash(shell, code)).replace(str(self.place), "")

    def _asks_bash(self, commands: str, code: int = 0) -> str:
        left = self.place / "left"
        script = f"{commands}\n{{ pwd; env --null; }} > {shlex.quote(str(left))}\n"
        done = subprocess.run(
            [BASH, "-euo", "pipefail", "-c", script], capture_output=True, text=True, check=False, timeout=300,
            cwd=self._folder, env=self._variables, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        said = f"{self.page.name}:\n{commands}{done.stdout[-2000:]}{done.stderr[-3000:]}"
        assert done.returncode == code, said
        if code == 0:
            folder, variables = left.read_text().split("\n", maxsplit=1)
            self._folder = Path(folder)
            self._variables = dict(each.split("=", maxsplit=1) for each in variables.split("\0") if each != "")
        return done.stdout

    def _trains(self, words: list[str]) -> str:
        out, err = io.StringIO(), io.StringIO()
        with self._here(self._folder) as change, redirect_stdout(out), redirect_stderr(err):
            change.setattr(sys, "argv", words)
            with pytest.raises(SystemExit) as ended:
                main()
        assert not ended.value.code, f"{self.page.name}:\n{shlex.join(words)}\n{out.getvalue()}{err.getvalue()}"
        return out.getvalue()

    def _compares(self, block: str) -> None:
        assert block.startswith("$ "), f"{self.page.name}: {block}"
        for each in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = each.partition("\n")
            printed = self._types(f"{command}\n", code=int("DOES NOT HOLD" in shown))  # as an audit that fails
            if shown:
                assert agrees([line.rstrip() for line in printed.splitlines()], shown.splitlines()), printed

    def _executes(self, block: str) -> None:
        with self._here(self.clone) as change:
            change.syspath_prepend(ROOT / "examples/flower-minimal")  # the app that a page shows
            exec(compile(_FIGURE.sub(_as_shown, block), self.page.name, "exec"), {})  # noqa: S102  it is our own documentation

    @contextmanager
    def _here(self, folder: Path) -> Iterator[pytest.MonkeyPatch]:
        """This process in a folder, with the variables of the page."""
        with pytest.MonkeyPatch.context() as change, patch.dict(os.environ, self._variables, clear=True), chdir(folder):
            if find_spec("torch") is not None:  # which may have looked for GPUs before they were hidden
                change.setattr("torch.cuda.is_available", lambda: False)
            yield change


def _training(line: str) -> list[str] | None:
    """The words of a command that is called in the test's process: there its modules are imported once.

    It is a `lightdp run` or `lightdp report` that runs to its end and has nothing that only a shell understands.
    """
    words = shlex.split(line, comments=True) if line.startswith(("lightdp run", "lightdp report")) else []
    called = words != [] and stand_ins.is_run(words[1:]) and "--live" not in words
    return words if called and set("".join(words)).isdisjoint("|&;<>$*~") else None


def _as_shown(line: re.Match[str]) -> str:
    """A line that prints a figure, and an assertion that it rounds to the one in its comment."""
    value, shown, digits = line.groups()
    return f"{line[0]}\nassert format({value}, '.{len(digits)}f') == '{shown}', {value}"


def agrees(printed: list[str], shown: list[str]) -> bool:
    """Whether the lines are those that were printed, where "..." stands for any number of them."""
    pattern = "".join(r"(?:.*\n)*" if line == "..." else f"{re.escape(line.rstrip())}\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None
