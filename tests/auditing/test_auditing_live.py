"""`lightdp.audit`: what it refuses, what it returns, and how it uses memory."""

from __future__ import annotations

import io
import json
import tracemalloc
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

import lightdp
from lightdp import attack, gaussian
from lightdp._validate import rounded_down, rounded_up
from lightdp.auditing import Audit, _live
from lightdp.auditing._audit import Figure
from lightdp.auditing._measure import Measurement, Sample
from lightdp.errors import ArgumentError
from lightdp.report._audit import audit_page
from lightdp.report._frame import page_text

if TYPE_CHECKING:
    from pathlib import Path

    from lightdp.planning import Plan

SURE = 1 - 1e-8


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 4, "colluders": 1, "stragglers": 1, "rounds": 6, "epsilon": 8.0, "delta": 1e-5}
    return lightdp.plan(**(asked | {"calibration": "repair"} | changed))


def shown(found: Audit) -> str:
    """What the terminal shows, with single spaces."""
    console = Console(file=io.StringIO(), width=200)
    for each in found.shown():
        console.print(each, highlight=False, markup=False)
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize(
    ("changed", "options", "words"),
    [
        ({}, {"values": 10}, r"values must be in 1000\.\.100000000000, got values=10"),
        ({}, {"values": 10**12}, r"values must be in 1000\.\.100000000000, got values=1000000000000"),
        ({"clients": 30, "rounds": 9}, {"values": 1100}, r"values must be in 1\d\d\d\.\.100000000000, got values=1100"),
        ({"clients": 10**6, "coordinate_range": 0.1}, {}, r"clients must be in 2\.\.1000, got clients=1000000"),
        ({"clients": 900}, {}, "play must leave at most 2000 uploads of honest clients"),
        ({}, {"confidence": 1.0}, r"confidence must be in \(0, 1\), got confidence=1"),
        ({}, {"lies": "white"}, "lies must be one of none, rotation, search, models, got lies='white'"),
        ({}, {"play": 7}, r"play must be in 1\.\.6, got play=7"),
        ({"population": 8}, {"play": 4}, r"play must be in 1\.\.3, got play=4"),
        ({}, {"schedule": "a.csv", "play": 2}, "play must be left out where a file lists the rounds, got play=2"),
        ({}, {"schedule": "a.csv", "lies": "rotation"}, "lies must be none or models with a file of rounds"),
        ({"calibration": "exact"}, {"lies": "search"}, "lies must be none or models with .* a plan without repair"),
        ({}, {"seed": -1}, "seed must be >= 0, got seed=-1"),
        ({"sampling_rate": 0.1}, {}, "sampling_rate must be 1 for an audit, got sampling_rate=0.1"),
        ({"calibration": "smpc"}, {}, "calibration must be one whose clients add noise alone, got calibration='smpc'"),
        ({"calibration": "central"}, {}, "calibration must be one whose clients add noise alone"),
    ],
)
def test_what_cannot_be_audited_is_refused_by_name(
    changed: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArgumentError, match=words):
        lightdp.audit(planned(**changed), **options)


def test_the_dict_has_every_figure_as_json() -> None:
    plan = planned(unit="client")
    found = lightdp.audit(plan, values=2000, confidence=SURE)
    wire = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert wire["holds"] is True
    assert wire["problems"] == []
    assert wire["exact"]["mu"] == found.exact.mu
    assert wire["exact"]["epsilon"] == gaussian.epsilon(found.exact.mu, plan.delta)
    power = NormalDist().cdf(NormalDist().inv_cdf(0.01) + found.exact.mu)
    assert wire["exact"]["found"] == pytest.approx(power, rel=1e-9)
    assert wire["budget"]["epsilon"] == 8.0
    assert found.exact.mu <= found.announced.mu <= found.worst.mu <= found.budget.mu
    assert [each["name"] for each in wire["measurements"]] == [
        "optimal linear test",
        "assumption-free bound",
        "covariance method",
    ]
    assert [each["group"] for each in wire["deviations"]] == ["uploads", "own noise", "fresh keys", "model"]
    assert wire["clip"]["norm"][0] < plan.clip < wire["clip"]["norm"][1] + plan.clip
    assert wire["level"] == pytest.approx((1 - SURE) / 5)
    assert wire["colluders"] == [3]
    assert wire["clip"]["norm"][0] == 0.0  # the noise hides it, and no norm is negative


def test_a_lower_end_above_a_claim_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim is halved, not the noise: exact and measured figures then lie above it, and each says so."""
    monkeypatch.setattr(lightdp.Client, "mu", lambda _, *, worst=False: 0.3 if worst else 0.2)
    found = lightdp.audit(planned(), values=20_000)
    assert any("exact μ" in problem and "the odometer at worst, 0.3000" in problem for problem in found.problems)
    assert any("optimal linear test: μ >=" in problem and "the odometer" in problem for problem in found.problems)
    assert not found.holds


@pytest.fixture(scope="module")
def sound() -> Audit:
    return lightdp.audit(planned(), values=2000, play=2, confidence=0.99)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_what_an_attacker_finds_is_said_in_the_words_of_all_outputs(adjacency: str) -> None:
    found = lightdp.audit(planned(adjacency=adjacency), values=1000, play=1, confidence=SURE)
    words = attack.sentence(found.worst.found, "record", adjacency)
    assert words in shown(found)
    assert words in page_text(audit_page(found.to_dict()))
    assert ("replaced" in words) == (adjacency == "replace")


def test_a_lower_end_of_epsilon_above_a_claim_is_a_problem(sound: Audit) -> None:
    limit = min(sound.exact.epsilon, sound.announced.epsilon, sound.budget.epsilon)
    below, above = (Measurement("bound", 0.0, epsilon_low=times * limit) for times in (0.999, 1.001))
    assert replace(sound, measurements=(below,), deviations=()).holds
    (problem,) = replace(sound, measurements=(above,), deviations=()).problems
    assert problem.startswith(f"bound: ε >= {1.001 * limit:.4f} lies above the exact μ")


def test_what_the_odometer_says_as_announced_is_a_claim_where_the_truth_is_told(sound: Audit) -> None:
    low = replace(sound, announced=Figure(0.9 * sound.exact.mu, 1.0), measurements=(), deviations=())
    (problem,) = low.problems
    assert "lies above that of the odometer as announced" in problem
    assert replace(low, lies="rotation").holds


@pytest.mark.parametrize(("unit", "statements"), [("client", 5), ("record", 4)])
def test_all_statements_share_the_level_equally(unit: str, statements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    levels = []

    def noted(real: Any) -> Any:
        def call(first: Any, level: float, *rest: Any) -> Any:
            levels.append(level)
            return real(first, level, *rest)

        return call

    for name in ("linear", "assumption_free", "covariance"):
        monkeypatch.setattr(Sample, name, noted(getattr(Sample, name)))
    monkeypatch.setattr(_live, "clip_held", noted(vars(_live)["clip_held"]))
    found = lightdp.audit(planned(unit=unit), values=1000, play=1, confidence=0.9)
    assert [*levels, found.level] == pytest.approx([0.1 / statements] * 5)
    odd, usual = (replace(found.deviations[0], chance=times * 0.1 / statements) for times in (0.99, 1.01))
    bare = replace(found, measurements=(), clip=None)
    assert [replace(bare, deviations=(each,)).holds for each in (odd, usual)] == [False, True]


def test_signs_that_were_not_all_tried_give_an_exact_mu_of_at_least_so_much() -> None:
    found = lightdp.audit(planned(rounds=40), values=2000, play=20, confidence=SURE)
    printed = shown(found)
    assert found.to_dict()["signs"] == "improved"
    assert "with signs that no change of one or two betters" in printed
    assert f"exact, of what was sent >= {rounded_down(found.exact.mu)} >= " in printed
    assert f"≥ {rounded_down(found.exact.mu)}" in page_text(audit_page(found.to_dict()))


def test_a_file_of_rounds_is_played(tmp_path: Path) -> None:
    (tmp_path / "rounds.csv").write_text("used,late\n0-3,\n0-2,3\n,0-3\n")
    found = lightdp.audit(planned(), values=2000, schedule=tmp_path / "rounds.csv", confidence=SURE)
    assert found.rounds == 3
    assert len(found.view.uploads) == 9
    assert found.holds


def test_a_plan_that_claims_less_than_its_noise_gives_does_not_hold() -> None:
    plan = planned(clients=10, colluders=2, stragglers=2, rounds=8, calibration="paper")
    found = lightdp.audit(plan, values=2000, confidence=SURE)
    (problem,) = found.problems
    assert (
        problem == f"plan: its noise gives ε = {rounded_up(plan.epsilon())} in 8 rounds, calibration='paper' claims 8"
    )
    assert plan.epsilon() > 8
    assert f"DOES NOT HOLD {problem}" in shown(found)
    assert not found.holds


@pytest.mark.parametrize(
    ("changed", "options", "words"),
    [
        ({"rounds": 8}, {}, "5 of 8 rounds"),
        ({"rounds": 6}, {"play": 2}, "2 of 6 rounds"),
        ({"rounds": 6, "population": 13}, {}, "2 of 2 rounds"),
        (
            {"clients": 10, "colluders": 2, "stragglers": 2, "rounds": 8, "calibration": "paper"},
            {},
            "3 of 8 rounds; clients refused the rest, which their budgets do not allow",
        ),
        (
            {"clients": 8, "colluders": 0, "stragglers": 6, "rounds": 1, "epsilon": 30.0},
            {"lies": "rotation"},
            "planned",
        ),
    ],
)
def test_how_much_of_the_plan_was_played_is_said(changed: dict[str, Any], options: dict[str, Any], words: str) -> None:
    found = lightdp.audit(planned(**changed), values=2000, confidence=SURE, **options)
    lines = [each for each in found.shown() if isinstance(each, str)]
    assert lines[1].startswith("Played: ")
    assert lines[1].endswith(words)
    assert lines[-1].endswith(f"in {lines[1].removeprefix('Played: ')}") == found.holds
    assert found.ended == ("refused" in words)
    assert f"{found.data_rounds} rounds played of {found.plan.turns} planned" in page_text(audit_page(found.to_dict()))
    assert ("clients refused the rest" in page_text(audit_page(found.to_dict()))) == found.ended


def test_late_uploads_that_are_assumed_unseen_are_named(tmp_path: Path) -> None:
    plan = planned(late="unseen", rounds=4)
    assumed = "late uploads are assumed unseen"
    found = lightdp.audit(plan, values=2000, confidence=SURE)
    assert found.holds
    first = str(next(iter(found.shown())))
    assert first.endswith(assumed)
    assert assumed not in shown(lightdp.audit(planned(), values=2000, confidence=SURE))
    (tmp_path / "rounds.csv").write_text("used,late\n0-3,\n1-3,0\n0-3,\n")
    found = lightdp.audit(plan, values=2000, schedule=tmp_path / "rounds.csv", confidence=SURE)
    assert any(
        "the odometer as announced" in each and "late='unseen' assumes nobody sees" in each for each in found.problems
    )


def test_a_file_of_void_rounds_has_no_model(tmp_path: Path) -> None:
    (tmp_path / "rounds.json").write_text('[{"used": [], "late": [0, 1, 2]}]')
    found = lightdp.audit(planned(), values=2000, schedule=tmp_path / "rounds.json", confidence=SURE)
    assert [each.group for each in found.deviations] == ["uploads", "own noise", "fresh keys"]
    assert found.holds


def test_memory_does_not_grow_with_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_live, "_KEPT", 1 << 16)
    peaks = []
    for values in (20_000, 20_000, 120_000):
        tracemalloc.start()
        lightdp.audit(planned(), values=values, play=2, confidence=SURE)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.3 * peaks[1]


@pytest.mark.parametrize("lies", ["none", "search"])
def test_progress_grows_to_one(lies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_live, "STEPS", 5)
    told: list[float] = []
    lightdp.audit(planned(), values=1000, play=1, progress=told.append, lies=lies)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert len(told) == len(set(told))


def test_a_search_says_how_near_it_came_and_plays_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_live, "STEPS", 30)
    plan = planned(clients=6, colluders=1, stragglers=3, rounds=2)
    found = lightdp.audit(plan, values=2000, lies="search", confidence=SURE)
    near = found.near["search"]
    assert near.worst == pytest.approx(found.exact.mu / found.worst.mu, rel=1e-6)
    assert near.budget == pytest.approx(found.exact.mu / found.budget.mu, rel=1e-6)
    assert found.to_dict()["near"]["search"]["mean"] == near.mean
    printed = shown(found)
    assert f"{found.refused} messages were refused by honest clients" in printed
    for name in ("truth", "rotation", "search"):
        each = found.near[name]
        assert f"{name} {100 * each.worst:.1f} % of the odometer at worst" in printed
    assert not lightdp.audit(planned(), values=2000, confidence=SURE).near


def test_every_run_has_other_noise() -> None:
    one, other = (lightdp.audit(planned(), values=1000, play=1, confidence=SURE) for _ in range(2))
    assert one.exact == other.exact
    assert one.measurements != other.measurements
