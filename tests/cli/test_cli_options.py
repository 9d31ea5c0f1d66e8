"""Flags that come from a dataclass, commands that are imported when called, and Python without docstrings."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from lightdp._settings import setting
from lightdp.cli import COMMANDS
from lightdp.cli.options import with_settings
from lightdp.training.config import Config
from support.command_line import plan_arguments

if TYPE_CHECKING:
    from support.command_line import Run


@dataclass(frozen=True, kw_only=True)
class Cake:
    eggs: int = setting("How many eggs.", group="Dough")
    sugar: float = setting("Grams of sugar.", 200.0, group="Dough")
    cream: Literal["sweet", "sour"] = setting("Which cream.", "sweet", group="Top")
    cherries: int | None = setting("How many cherries.", None, group="Top")
    glazed: bool = setting("Whether it shines.", False, group="Top")
    secret: int = setting("Of the cook.", 1)


class Kitchen:
    def __init__(self) -> None:
        self.baked: list[tuple[dict[str, Any], int]] = []
        self.app = typer.Typer(rich_markup_mode="markdown")
        self.app.command()(with_settings(self.bake, Cake, leave_out=["secret"]))

    def bake(self, given: dict[str, Any], *, heat: Annotated[int, typer.Option(help="Degrees.")] = 180) -> None:
        self.baked.append((given, heat))

    def call(self, *arguments: str) -> Any:
        return CliRunner(env={"COLUMNS": "100"}).invoke(self.app, arguments)


def test_flags_without_a_default_may_be_left_out_where_they_are_optional() -> None:
    baked: list[dict[str, Any]] = []
    app = typer.Typer()
    app.command()(with_settings(baked.append, Cake, optional=True))
    call = CliRunner(env={"COLUMNS": "100"}).invoke
    assert [call(app, given).exit_code for given in ([], ["--eggs", "3"], ["--eggs", "x"])] == [0, 0, 2]
    assert baked == [{}, {"eggs": 3}]


def test_only_given_flags_reach_the_function_even_if_they_are_the_default() -> None:
    kitchen = Kitchen()
    assert kitchen.call("--eggs", "3").exit_code == 0
    assert kitchen.call("--eggs", "3", "--sugar", "200", "--cherries", "5", "--glazed", "--heat", "90").exit_code == 0
    assert kitchen.baked == [
        ({"eggs": 3}, 180),
        ({"eggs": 3, "sugar": 200.0, "cherries": 5, "glazed": True}, 90),
    ]
    assert Cake(**kitchen.baked[0][0]).cream == "sweet"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--eggs"),
        (["--eggs", "three"], "three"),
        (["--eggs", "3", "--cream", "salty"], "salty"),
        (["--eggs", "3", "--secret", "2"], "--secret"),
    ],
)
def test_flags_are_required_and_checked_as_the_fields_say(arguments: list[str], word: str) -> None:
    kitchen = Kitchen()
    done = kitchen.call(*arguments)
    assert (done.exit_code, kitchen.baked) == (2, [])
    assert word in done.output


def test_help_has_texts_defaults_choices_and_a_panel_for_each_group() -> None:
    page = Kitchen().call("--help").output
    for part in (
        "─ Dough ─",
        "─ Top ─",
        "How many eggs.",
        "[required]",
        "[default: 200.0]",
        "[sweet|sour]",
        "--no-glazed",
    ):
        assert part in page
    assert page.index("Dough") < page.index("--sugar") < page.index("─ Top ─") < page.index("--cream")
    assert "--secret" not in page


def test_every_setting_of_a_run_has_a_flag_and_a_help_text(run: Run) -> None:
    page = re.sub(r"[^!-~]+", " ", run("run", "--help").out)
    for field in dataclasses.fields(Config):
        flag = "graph" if field.name == "degree" else field.name  # as of `lightdp plan`
        assert f" --{flag.replace('_', '-')} " in page
        text = field.metadata["help"]
        assert len(text.split()) >= 3
        assert text.endswith(".")
        assert text.split()[0] in page
    for group in ("Data", "Model", "Privacy", "Clients", "Training", "Simulation"):
        assert any(field.metadata["group"] == group for field in dataclasses.fields(Config))


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def test_python_m_works_without_docstrings_too(run: Run) -> None:
    expected = json.loads(run(*plan_arguments(), "--json").out)
    for flags in ([], ["-OO"]):
        done = python(*flags, "-m", "lightdp", *plan_arguments(), "--json")
        assert json.loads(done.stdout) == expected
    page = python("-OO", "-m", "lightdp", "run", "--help").stdout
    assert "Usage: lightdp run" in page
    assert "Number of clients, N." in page


def test_help_in_a_pipe_is_100_columns_wide() -> None:
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "TERMINAL_WIDTH")}
    page = subprocess.run(
        [sys.executable, "-m", "lightdp", "run", "--help"], capture_output=True, text=True, check=True, env=plain
    ).stdout
    assert {len(line) for line in page.splitlines() if line.startswith("╭")} == {100}


def test_the_list_of_commands_imports_none_and_a_command_imports_what_it_needs() -> None:
    code = """
import sys
from lightdp import cli
sys.argv = ["lightdp", *{arguments!r}]
try:
    cli.main()
finally:
    print(*(name for name in {watched!r} if name in sys.modules), file=sys.stderr)
"""
    watched = [
        "numpy",
        "scipy.special",
        "scipy.optimize",
        "scipy.linalg",
        "cryptography",
        "torch",
        "rich",
        "dp_accounting",
    ]
    listed = python("-c", code.format(arguments=["--help"], watched=watched[:-3]))
    assert listed.stderr.split() == []
    for name in (*COMMANDS, "compare", "reproduce", "bench"):
        assert f" {name} " in listed.stdout
    planned = python("-c", code.format(arguments=[*plan_arguments(), "--json"], watched=watched))
    special = f"import sys, scipy.special; print(*(name for name in {watched!r} if name in sys.modules))"
    itself = python("-c", special).stdout.split()  # scipy 1.18 imports scipy.linalg there
    assert itself[:2] == ["numpy", "scipy.special"]
    assert planned.stderr.split() == itself
