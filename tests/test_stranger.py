"""A stranger's path: install, demo, plan, own table, live page, Flower, audit, by what README says and nothing else.

Commands are read from README.md and the pages that it links to, and run in a copy of the repository with a fresh
virtual environment. To stay quick and offline, that environment takes its dependencies from the one that runs the
tests, but only those that README's line of installation brings: `pip install` gets `--no-deps`, and `make demo` is run
without its step of installation. Its commands are on the path, as README says to activate it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
import venv
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from lightdp.runlog import RunLog
from support.docs import ROOT, blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

README = (ROOT / "README.md").read_text(encoding="utf-8")
INSTALL = re.compile(r"^(pip install [^#\n]*)", flags=re.MULTILINE)
NEEDED = (
    "src",
    "docs",
    "examples",
    "README.md",
    "LICENSE",
    "Makefile",
    "constraints.txt",
    "pyproject.toml",
    "setup.py",
)


def wanted(start: str) -> tuple[str, Path]:
    """Command and page of the row of README's table that begins so."""
    row = re.search(
        rf"^\| {start}[^|]*\| `([^`]+)`[^|]*\| (.*) \|$", README.replace("\N{NO-BREAK SPACE}", " "), flags=re.MULTILINE
    )
    assert row is not None, start
    page = re.search(r"\]\(([^)]+)\)", row[2])
    return row[1], ROOT / ("README.md" if page is None else page[1])


def words(command: str) -> list[str]:
    """A command as a shell reads it, with the variables that stand before it."""
    return ["env", *shlex.split(command)]


@dataclass(frozen=True)
class Stranger:
    """Somebody with a clone and an environment.

    Attributes:
        folder: the clone.
        bin: where the commands of the environment are.
    """

    folder: Path
    bin: Path

    @property
    def environment(self) -> dict[str, str]:
        mine = {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "FLWR_HOME": str(self.folder / ".flwr")}
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        quick = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2"}
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return inherited | mine | quiet | quick

    def types(self, command: str) -> str:
        done = subprocess.run(
            words(command), cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    """A clone of what is here, and a fresh environment with links to what README's install line brings, but lightdp."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in NEEDED:
        source, target = ROOT / name, clone / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, target)
    venv.create(clone / ".venv", with_pip=False)
    [own] = (clone / ".venv").glob("lib/python*/site-packages")
    for found in brought():
        borrow(found, own)
    commands = clone / ".venv/bin"
    for script in Path(sys.executable).parent.glob("fl*w*r*"):
        first, _, rest = script.read_text(encoding="utf-8").partition("\n")
        assert first.startswith("#!")
        (commands / script.name).write_text(f"#!{commands}/python\n{rest}")
        (commands / script.name).chmod(0o755)
    return Stranger(clone, commands)


def brought() -> list[Distribution]:
    """What README's line of installation brings by the extras that pyproject.toml has, and what pip needs to build."""
    [install] = INSTALL.findall(README)
    found: dict[str, Distribution] = {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own, optional = project["name"], project["optional-dependencies"]
    waiting = [Requirement(text) for text in (*project["dependencies"], "pip", "setuptools", "wheel")]
    waiting.append(Requirement(own + shlex.split(install)[-1].removeprefix(".")))
    seen = set()
    while waiting:
        asked = waiting.pop()
        if str(asked) in seen:
            continue
        seen.add(str(asked))
        if asked.name == own:
            waiting += [Requirement(text) for extra in asked.extras for text in optional[extra]]
            continue
        try:
            found[asked.name] = distribution(asked.name)
        except PackageNotFoundError:  # what is not here, nothing here imports
            continue
        for more in map(Requirement, found[asked.name].requires or ()):
            if more.marker is None or any(more.marker.evaluate({"extra": extra}) for extra in ("", *asked.extras)):
                waiting.append(more)
    return list(found.values())


def borrow(found: Distribution, folder: Path) -> None:
    """Link the packages and modules of a distribution."""
    for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
        link = folder / top
        if not link.is_symlink():
            link.symlink_to(Path(str(found.locate_file(top))))


def test_the_install_line_names_the_extra_of_every_command_in_the_readme() -> None:
    [install] = INSTALL.findall(README)
    named = Requirement("lightdp" + shlex.split(install)[-1].removeprefix(".")).extras
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert named <= set(project["optional-dependencies"])
    needs = {"lightdp run": "train", "lightdp reproduce": "train", "lightdp ui": "ui", "flwr run": "flower"}
    asked = {extra for command, extra in needs.items() if re.search(rf"`(\w+=\S+ )?{command}", README)}
    assert asked == {"train", "ui", "flower"}
    assert asked <= named


def test_a_stranger_gets_from_install_to_audit_by_the_readme_alone(stranger: Stranger) -> None:
    installs(stranger)
    runs_the_demo(stranger)
    plans(stranger)
    trains_on_a_table_of_its_own(stranger)
    looks_at_the_live_page(stranger)
    makes_a_flower_app_private(stranger)
    audits(stranger)


def installs(stranger: Stranger) -> None:
    [install] = INSTALL.findall(README)
    words = shlex.split(install)[2:]
    assert words[-1].startswith(".[")
    stranger.types(f"python -m pip install --no-deps --no-build-isolation --no-index --quiet {shlex.join(words)}")
    where = stranger.types("python -c 'import lightdp; print(lightdp.__file__)'")
    assert Path(where.strip()).is_relative_to(stranger.folder / ".venv")


def runs_the_demo(stranger: Stranger) -> None:
    assert "make demo" in blocks(ROOT / "README.md", "sh")[0].text
    assert ". .venv/bin/activate" in blocks(ROOT / "README.md", "sh")[0].text  # so that commands are on the path below
    printed = stranger.types("make demo TRAIN=")
    assert RunLog.read(stranger.folder / "out/demo.jsonl").accuracy > 0.9  # type: ignore[operator]
    assert (stranger.folder / "out/demo.html").is_file()
    following = printed.split("\nNext:\n")[1]
    assert "lightdp ui" in following
    for page in re.findall(r"docs/\S+\.md", following):
        assert (stranger.folder / page).is_file()


def plans(stranger: Stranger) -> None:
    [shown] = blocks(ROOT / "README.md", "console")
    command = shown.text.partition("\n")[0].removeprefix("$ ")
    assert "the server together with any 10 other clients" in stranger.types(command)


def trains_on_a_table_of_its_own(stranger: Stranger) -> None:
    command, page = wanted("use my own table")
    (stranger.folder / "made.py").write_text(blocks(page, "python")[0].text, encoding="utf-8")
    stranger.types("python made.py")
    columns = blocks(page, "toml")[0]
    (stranger.folder / columns.title).write_text(columns.text, encoding="utf-8")
    stranger.types(command)
    assert len(RunLog.read(stranger.folder / "visits.jsonl").rounds) > 0


def looks_at_the_live_page(stranger: Stranger) -> None:
    command, _ = wanted("plan and watch")
    port = free_port()
    with process(stranger, f"{command} . --port {port} --no-browser") as log:
        link = re.compile(rf"http://127\.0\.0\.1:{port}/\?token=\S+")
        waits(lambda: link.search(log.read_text(encoding="utf-8")) is not None)
        found = link.search(log.read_text(encoding="utf-8"))
        assert found is not None, log.read_text(encoding="utf-8")
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # the token becomes a cookie
        browser.open(found[0], timeout=10).close()
        for page, words in (("", b"Stragglers"), ("api/runs", b"visits.jsonl")):
            with browser.open(f"http://127.0.0.1:{port}/{page}", timeout=10) as answer:
                assert words in answer.read()


def makes_a_flower_app_private(stranger: Stranger) -> None:
    command, page = wanted("use Flower")
    assert page.read_text(encoding="utf-8").count("lightdp.flower.mod") > 0
    port, result = free_port(), stranger.folder / "result.json"
    (stranger.folder / ".flwr").mkdir()
    (stranger.folder / ".flwr/config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    settings = f'clients=10 rounds=2 epsilon=2000.0 result="{result}"'
    variables = command.partition("flwr run ")[0]  # `flwr run` hands them to the SuperLink that it starts
    with process(stranger, f"{variables}flower-superlink --insecure --simulation --port {port}"):
        waits(lambda: answers(f"http://127.0.0.1:{port}/health"))
        fewer = command.replace("num-supernodes=50", "num-supernodes=10")
        stranger.types(f"{fewer} --run-config {shlex.quote(settings)}")
    assert '"lightdp-epsilon"' in result.read_text()


def audits(stranger: Stranger) -> None:
    command, _ = wanted("check a run")
    for log in ("out/demo.jsonl", "visits.jsonl"):
        assert "holds: " in stranger.types(command.replace("run.jsonl", log))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(link: str) -> bool:
    try:
        urllib.request.urlopen(link, timeout=1).close()  # noqa: S310  on this machine
    except OSError:
        return False
    return True


def waits(ready: Callable[[], bool]) -> None:
    """At most a minute; then the test fails."""
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end, "not ready after a minute"
        time.sleep(0.1)


@contextmanager
def process(stranger: Stranger, command: str) -> Iterator[Path]:
    """A command that runs until it is no longer needed, with all that it starts; what it prints goes to a file."""
    log = stranger.folder / "process.log"
    with log.open("wb") as file, subprocess.Popen(
        words(command), cwd=stranger.folder, env=stranger.environment, start_new_session=True,
        stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    ) as started:  # fmt: skip
        try:
            yield log
        finally:
            os.killpg(started.pid, signal.SIGTERM)
            try:
                started.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
