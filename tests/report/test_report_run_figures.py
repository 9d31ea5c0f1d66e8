"""The names, figures and caveats of runs, as they are printed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from lightdp._validate import rounded_up
from lightdp.report import run_tables
from lightdp.report._figures import caveats, labels
from lightdp.report._page import _resolved, _summary, run_page
from lightdp.report._panels import colours
from support.run_logs import PLAN, logged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightdp.runlog import RunLog


def shown(runs: Sequence[RunLog], width: int = 160) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    console.print(*run_tables(runs))
    console.file.close()
    return console.export_text()


def test_runs_are_called_by_their_scheme_and_if_need_be_by_their_file(make: Callable[..., RunLog]) -> None:
    runs = [make("exact", "a"), make("none", "b"), make("exact", "c")]
    assert labels(runs) == ["LightDP exact · a", "no noise", "LightDP exact · c"]
    assert labels(runs[:2]) == ["LightDP exact", "no noise"]


def test_a_run_given_twice_has_two_names_and_two_looks(make: Callable[..., RunLog]) -> None:
    runs = [make("exact")] * 12
    assert len(set(labels(runs))) == 12
    assert len({str(look) for look in colours(runs)}) == 12


def test_a_run_of_a_compared_scheme_has_its_own_name_and_colour(make: Callable[..., RunLog]) -> None:
    secagg, lightsecagg = logged(), logged()
    for lines, scheme in ((secagg, "secagg"), (lightsecagg, "lightsecagg")):
        lines[0]["config"] |= {"scheme": scheme}
        lines[0]["plan"] = PLAN | {"calibration": "smpc"}
    runs = [make(lines=secagg, name="a"), make(lines=lightsecagg, name="b")]
    assert labels(runs) == ["SecAgg + DP", "LightSecAgg + DP"]
    assert len({colour for colour, _ in colours(runs)}) == 2
    assert "SMPC + DP" in run_page(runs)


def test_epsilon_is_never_rounded_down() -> None:
    assert [rounded_up(x) for x in (3, 2.9, 2.00001, 0.30000000000000004)] == ["3.0000", "2.9000", "2.0001", "0.3000"]


def test_many_runs_fold_no_figure(make: Callable[..., RunLog]) -> None:
    text = shown([make("repair", name) for name in "abcdefghijkl"], width=100)
    assert len(re.findall(r"\b62\.23 %", text)) == 12
    assert len(re.findall(r"\badd-remove\b", text)) == 12


def test_the_table_has_the_figures_of_every_run(make: Callable[..., RunLog]) -> None:
    text = shown([make("repair"), make("exact", stopped="budget"), make("none")])
    for figure in ("62.23 %", "63.23 %", "61.23 %", "2.8866", "2.8966", "∞", "1e-05", "1.463 kB", "2.602 kB", "12.3"):
        assert figure in text
    assert "at the budget" in text


def test_the_table_takes_names_for_what_they_are(make: Callable[..., RunLog]) -> None:
    text = shown([make("exact", "[red]a\x1b[2J"), make("exact", "b")])
    assert "[red]a\N{REPLACEMENT CHARACTER}[2J" in text
    assert "\x1b" not in text


CAVEATS: dict[str, tuple[dict[str, Any], str | None]] = {
    "nothing": ({}, None),
    "more spent than claimed": ({"epsilon": 3.01}, "spent ε = 3.0100 (μ = 0.7143), more than the 3 it claims"),
    "all spent": ({"epsilon": 3.0}, None),
    "assumed sensitivity": ({"unit": "paper"}, "assumed sensitivity"),
}


@pytest.mark.parametrize("case", CAVEATS)
def test_a_run_to_be_wary_of_is_said_to_be(make: Callable[..., RunLog], case: str) -> None:
    fields, sentence = CAVEATS[case]
    said = caveats([make("exact", **fields)])
    assert (sentence is None and said == []) or (sentence is not None and sentence in said[0])


@pytest.mark.parametrize(
    ("scheme", "sentence"),
    [
        ("none", "no privacy is guaranteed"),
        (
            "central",
            "protects only against anybody who sees the models alone (not the server, which saw every update).",
        ),
    ],
)
def test_a_weaker_adversary_is_said(make: Callable[..., RunLog], scheme: str, sentence: str) -> None:
    assert sentence in caveats([make(scheme)])[0]


@pytest.mark.parametrize(("field", "value"), [("unit", "client"), ("adjacency", "replace"), ("delta", 1e-6)])
def test_epsilons_that_do_not_compare_are_said_not_to(make: Callable[..., RunLog], field: str, value: object) -> None:
    said = caveats([make("exact"), make("repair", **{field: value})])
    assert [f"differ in {field}" in sentence for sentence in said] == [True]
    assert "do not compare" in said[0]


def test_runs_on_other_data_are_said_to_be(make: Callable[..., RunLog]) -> None:
    lines = logged("exact")
    lines[0]["config"]["data"] = "cifar10"
    assert caveats([make("repair"), make("exact", lines=lines)]) == ["The runs differ in data: cifar10, digits."]


def test_runs_are_named_by_their_data_sets_and_modules_where_the_log_has_them(make: Callable[..., RunLog]) -> None:
    lines = logged("exact")
    lines[0] |= {"dataset": {"name": "mine", "digest": "ab"}, "module": {"name": "lab.Net", "digest": "cd"}}
    own, usual = make("exact", lines=lines), make("repair")
    assert (own.data, own.model, usual.data, usual.model) == ("mine", "lab.Net", "digits", None)
    said = caveats([usual, own])
    assert said == ["The runs differ in data: digits, mine.", "The runs differ in model: lab.Net, not recorded."]
    assert _summary([own]).startswith("lab.Net on mine over 10 clients")
    assert _resolved(own)["data"] == "mine"
