"""`lightdp plan`: its page, options, JSON and tables, and the plans that it refuses."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

import lightdp
from lightdp import planning, stragglers
from support.command_line import EXAMPLE, assert_refused, plan_arguments

if TYPE_CHECKING:
    from support.command_line import Run

KEYS = [
    "calibration",
    "gamma",
    "sigma_individual",
    "sigma_pairwise",
    "sigma_effective",
    "noise_multiplier",
    "epsilon",
    "delta",
    "epsilon_true",
    "rounds",
    "noise_in_mean",
    "sensitivity",
    "unit",
    "adjacency",
]
SCHEMES = ["central", "smpc", "repair", "exact", "paper", "local"]


def test_the_example_prints_its_page(run: Run) -> None:
    result = run(*plan_arguments(calibration="exact"))
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{lightdp.plan(**EXAMPLE, calibration='exact')}\n"  # type: ignore[arg-type]
    for figure in ("σ_U 4.98014", "σ_K 3.06131", "γ = σ_K²/σ_U² = 0.37786", "17.0312", "ε = 3.0000", "variance 1.659"):
        assert figure in result.out
    for head in ("Guarantee", "Against", "Stragglers", "Noise", "Accuracy", "Upload", "Keys", "Masks"):
        assert f"\n{head}" in result.out


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({"calibration": "repair"}, {"calibration": "repair"}),
        (
            {"calibration": "repair", "reserve": "worst", "late": "unseen"},
            {"calibration": "repair", "reserve": "worst", "late": "unseen"},
        ),
        ({"gamma": 3}, {"gamma": 3.0}),
        ({"unit": "client", "adjacency": "replace", "clip": 2}, {"unit": "client", "adjacency": "replace", "clip": 2}),
        ({"graph": "circulant:20"}, {"degree": 20}),
        ({"graph": "circulant:20:7"}, {"degree": 20, "graph_seed": 7}),
        ({"straggler_law": "binomial:0.05"}, {"straggler_law": stragglers.binomial(10, 50, 0.05)}),
        ({"straggler_law": "pmf:0.5,0.25,0.25"}, {"straggler_law": stragglers.custom(10, [0.5, 0.25, 0.25])}),
        (
            {"records": 5000, "parameters": 10**6, "coordinate_range": 0.5},
            {"records": 5000, "parameters": 10**6, "coordinate_range": 0.5},
        ),
        ({"sampling_rate": 0.01, "rounds": 20}, {"sampling_rate": 0.01, "rounds": 20}),
        ({"wire_steps": 8}, {"wire_steps": 8}),
        ({"population": 60}, {"population": 60}),
    ],
)
def test_options_reach_the_plan(run: Run, changes: dict[str, Any], settings: dict[str, Any]) -> None:
    found = json.loads(run(*plan_arguments(**changes), "--json").out)
    assert ("memberships" in found) == ("population" in settings)
    found.pop("memberships", None)
    assert found == lightdp.plan(**(EXAMPLE | settings)).to_dict()


@pytest.mark.parametrize("rotate", [True, False])
def test_rotation_is_a_pair_of_flags(run: Run, rotate: bool) -> None:
    flag = "--rotate" if rotate else "--no-rotate"
    result = run(*plan_arguments(parameters=1000), flag, "--json")
    assert json.loads(result.out) == lightdp.plan(**EXAMPLE, parameters=1000, rotate=rotate).to_dict()  # type: ignore[arg-type]
    assert json.loads(result.out)["rotates"] is rotate


COHORTS = {"clients": 20, "population": 100, "colluders": 4, "stragglers": 4, "rounds": 50, "epsilon": 8}


def test_cohorts_are_compared_with_everybody_and_with_the_same_clients(run: Run) -> None:
    arguments = plan_arguments(**COHORTS, calibration="repair")
    found = json.loads(run(*arguments, "--json").out)
    assert found["turns"] == 10
    cohorts, everybody, fixed = found["memberships"]
    assert [each["turns"] for each in (cohorts, everybody, fixed)] == [10, 50, 50]
    assert [each["clients"] for each in (cohorts, everybody, fixed)] == [20, 100, 20]
    assert [each["colluders"] for each in (cohorts, everybody, fixed)] == [4, 20, 4]
    for each, changed in ((everybody, {"clients": 100, "colluders": 20, "stragglers": 20}), (fixed, {})):
        asked: dict[str, Any] = COHORTS | {"delta": 1e-5, "population": None, "calibration": "repair"} | changed
        plan = lightdp.plan(**asked)
        assert each["noise_in_mean"] == plan.noise_in_mean()
        assert each["epsilon_true"] == plan.epsilon() <= 8
        assert each["impossible"] is None
    page = " ".join(run(*arguments).out.split())
    for row, times in ((everybody, "6.82 times less"), (fixed, "3.05 times more")):
        assert f"{row['title']} in every round" in page
        assert f"variance {row['noise_in_mean']:.4g} in the mean, {times}" in page
    assert "5 rosters take turns; each client takes part in 10 of 50 rounds" in page


def test_every_scheme_but_the_papers_has_cohorts(run: Run) -> None:
    rows = json.loads(run(*plan_arguments(**COHORTS), "--json", "--compare").out)["compare"]
    impossible = {row["scheme"]: row["impossible"] for row in rows if row["impossible"] is not None}
    assert list(impossible) == ["paper"]
    assert "population=100" in impossible["paper"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"population": 19}, "population must be in 20..4294967294, got population=19"),
        ({"calibration": "paper"}, "the paper's calibration has the same clients in every round, got population=100"),
    ],
)
def test_wrong_populations_end_in_one_line(run: Run, changed: dict[str, Any], message: str) -> None:
    assert_refused(run(*plan_arguments(**COHORTS | changed)), message)


# JSON


@pytest.mark.parametrize("calibration", ["exact", "repair", "paper", "local", "smpc", "central"])
@pytest.mark.parametrize("compare", [False, True])
def test_json_has_every_key_with_the_value_of_the_plan(run: Run, calibration: str, compare: bool) -> None:
    result = run(*plan_arguments(calibration=calibration), "--json", *(["--compare"] if compare else []))
    found = json.loads(result.out)
    expected = lightdp.plan(**EXAMPLE, calibration=calibration)  # type: ignore[arg-type]
    assert (result.code, result.err) == (0, "")
    assert set(KEYS) <= set(found)
    for key in KEYS:
        value = expected.to_dict()[key]
        assert found[key] == value, key
    assert (found["epsilon"], found["epsilon_true"]) == (expected.budget, expected.epsilon())
    assert (found["sigma_pairwise"], found["noise_in_mean"]) == (expected.sigma_pairwise, expected.noise_in_mean())
    assert ("compare" in found) == compare


def test_json_holds_the_reference_values(run: Run) -> None:
    found = json.loads(run(*plan_arguments(calibration="exact"), "--json").out)
    assert found["sigma_individual"] == pytest.approx(4.98014, abs=5e-6)
    assert found["gamma"] == pytest.approx(0.377860, abs=5e-7)
    assert found["epsilon_true"] == pytest.approx(3, abs=1e-6)
    assert found["epsilon_true"] <= found["epsilon"] == 3
    assert (found["calibration"], found["unit"], found["adjacency"]) == ("exact", "record", "add-remove")
    assert (found["rounds"], found["delta"], found["epsilon"], found["sensitivity"]) == (150, 1e-5, 3.0, 1.0)


def test_the_page_and_json_say_which_calibration_auto_took(run: Run) -> None:
    for rounds, taken, other in ((150, "repair", "exact"), (1, "exact", "repair")):
        found = json.loads(run(*plan_arguments(rounds=rounds), "--json").out)
        assert found["calibration"] == taken
        assert found["why"].startswith(f"auto took {taken}: ")
        page = run(*plan_arguments(rounds=rounds)).out
        assert f"auto took {taken}: " in page
        assert f"of the trained model, with {other} to " in " ".join(page.split())
        named = json.loads(run(*plan_arguments(rounds=rounds, calibration=taken), "--json").out)
        assert named == found | {"why": None}


def test_json_of_the_paper_tells_claimed_from_true(run: Run) -> None:
    found = json.loads(run(*plan_arguments(calibration="paper"), "--json").out)
    assert found["epsilon"] == 3
    assert found["epsilon_true"] == pytest.approx(9.2376, abs=5e-5)


def test_json_of_a_comparison_marks_the_impossible(run: Run) -> None:
    rows = json.loads(run(*plan_arguments(colluders=45), "--json", "--compare").out)["compare"]
    assert [row["scheme"] for row in rows] == SCHEMES
    assert {row["scheme"]: row["impossible"] is None for row in rows} == dict.fromkeys(SCHEMES, True) | {"smpc": False}
    assert {row["scheme"]: row["noise_in_mean"] is None for row in rows}["smpc"]


# Tables


def test_compare_prints_every_scheme_with_its_noise(run: Run) -> None:
    result = run(*plan_arguments(), "--compare")
    rows = planning.compare(lightdp.plan(**EXAMPLE))  # type: ignore[arg-type]
    table = result.out.split("The same true guarantee")[1]
    assert len(rows) == 6
    for row in rows:
        line = next(line for line in table.splitlines() if row.title in line)
        assert f" {row.noise_in_mean:.4g} " in line
    assert "impossible" not in table


@pytest.mark.parametrize(
    ("changes", "title", "reason"),
    [
        ({"colluders": 45}, "SMPC + DP", "50 <= 45 + 10"),
        ({"graph": "circulant:20"}, "LightDP, paper's γ", "degree=20"),
    ],
)
def test_compare_marks_impossible_schemes(run: Run, changes: dict[str, Any], title: str, reason: str) -> None:
    table = run(*plan_arguments(**changes), "--compare").out.split("The same true guarantee")[1]
    marked = [line for line in table.splitlines() if "impossible" in line]
    assert len(marked) == 1
    assert title in marked[0]
    assert reason in " ".join(table.split())


def test_paper_prints_claimed_and_true_epsilon(run: Run) -> None:
    table = run(*plan_arguments(calibration="paper")).out.split("claimed and true")[1]
    for line, figures in zip(
        (line for line in table.splitlines() if "round" in line and "ε" not in line),
        (
            ("1", "3", "2.1536", "0.5359"),
            ("150", "3", "48.7565", "6.5629"),
            ("150", "3", "9.2376", "1.8753"),
            ("150", "3", "2.1536", "0.5359"),
        ),
        strict=True,
    ):
        assert tuple(line.split()[-4:]) == figures


def test_exact_prints_no_claims(run: Run) -> None:
    assert "claim" not in run(*plan_arguments()).out


# Refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"colluders": 50}, ["colluders=50", "0..49"]),
        ({"colluders": -1}, ["colluders=-1"]),
        ({"stragglers": 49}, ["stragglers=49", "0..48"]),
        ({"stragglers": 49, "straggler_law": "pmf:1"}, ["stragglers=49"]),
        ({"stragglers": 51, "straggler_law": "binomial:0.1"}, ["stragglers=51"]),
        ({"clients": 1, "colluders": 0, "stragglers": 0}, ["clients=1"]),
        ({"rounds": 0}, ["rounds=0"]),
        ({"epsilon": 0}, ["epsilon=0"]),
        ({"epsilon": -3}, ["epsilon=-3"]),
        ({"epsilon": "nan"}, ["epsilon=nan"]),
        ({"epsilon": "inf"}, ["epsilon=inf"]),
        ({"delta": 0}, ["delta=0", "(0, 1)"]),
        ({"delta": 1}, ["delta=1"]),
        ({"delta": -1e-5}, ["delta=-1e-05"]),
        ({"delta": "nan"}, ["delta=nan"]),
        ({"delta": 0.01, "records": 100}, ["delta=0.01", "1/records = 0.01"]),
        ({"delta": 0.02, "records": 100}, ["delta=0.02"]),
        ({"records": 0}, ["records=0"]),
        ({"clip": 0}, ["clip=0"]),
        ({"clip": "nan"}, ["clip=nan"]),
        ({"gamma": "nan"}, ["gamma=nan"]),
        ({"gamma": -1}, ["gamma=-1"]),
        ({"gamma": 1, "calibration": "paper"}, ["gamma", "calibration='paper'"]),
        ({"sampling_rate": 0}, ["sampling_rate=0"]),
        ({"sampling_rate": "nan"}, ["sampling_rate=nan"]),
        ({"sampling_rate": 0.5, "unit": "client"}, ["sampling_rate=0.5"]),
        ({"parameters": 0}, ["parameters=0"]),
        ({"coordinate_range": 0}, ["coordinate_range=0"]),
        ({"coordinate_range": 1e12}, ["at most 29 fit the wire at wire_steps=2", "reduce coordinate_range"]),
        ({"wire_steps": 3}, ["wire_steps=3"]),
        ({"calibration": "smpc", "colluders": 45}, ["smpc", "50 <= 45 + 10"]),
        ({"calibration": "paper", "graph": "circulant:20"}, ["degree=20"]),
        ({"straggler_law": "pmf:0.5,0.4"}, ["sum of 0.9", "straggler_law='pmf:0.5,0.4'"]),
        ({"straggler_law": "pmf:0.5,nan"}, ["straggler_law='pmf:0.5,nan'"]),
        ({"straggler_law": "pmf:1.5,-0.5"}, ["straggler_law='pmf:1.5,-0.5'"]),
        ({"straggler_law": "pmf:" + ",".join(["0"] * 11 + ["1"])}, ["1 to 11 probabilities"]),
        ({"straggler_law": "pmf:"}, ["straggler_law='pmf:'"]),
        ({"straggler_law": "binomial:1.5"}, ["1.5", "straggler_law='binomial:1.5'"]),
        ({"straggler_law": "binomial"}, ["straggler_law='binomial'"]),
        ({"straggler_law": "binomial:x"}, ["straggler_law='binomial:x'"]),
        ({"straggler_law": "poisson:3"}, ["straggler_law='poisson:3'"]),
        ({"graph": "ring"}, ["graph='ring'"]),
        ({"graph": "complete:3"}, ["graph='complete:3'"]),
        ({"graph": "circulant"}, ["graph='circulant'"]),
        ({"graph": "circulant:50"}, ["graph='circulant:50'", "clients=50"]),
        ({"graph": "circulant:-2"}, ["graph='circulant:-2'"]),
        ({"graph": "circulant:4:5:6"}, ["graph='circulant:4:5:6'"]),
        ({"graph": "circulant:4:" + "9" * 5000}, ["graph="]),
        ({"clients": 10**12, "stragglers": 10**12 - 2}, ["clients must be in 2..4294967294"]),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json", "--compare"]], ids=["page", "json"])
def test_impossible_plans_end_in_one_line(
    run: Run, changes: dict[str, Any], words: list[str], options: list[str]
) -> None:
    assert_refused(run(*plan_arguments(**changes), *options), *words)


def test_a_large_delta_is_warned_of(run: Run) -> None:
    small = ("--clients=2000", "--colluders=200", "--stragglers=200", "--rounds=3", "--epsilon=3")
    assert run("plan", *small, "--delta=1e-5").err == ""
    for delta in ("0.01", "0.0005"):  # one over 2,000
        assert run("plan", *small, f"--delta={delta}").err == (
            f"delta = {delta} is a large probability to fail: usual is at most 0.001 and below one over the number of "
            "clients or people\n"
        )


def test_a_small_upload_is_in_bytes(run: Run) -> None:
    done = run(*plan_arguments(parameters=14))
    assert re.search(r"Upload +\d+ bits a parameter = \d+ bytes, ", done.out)
