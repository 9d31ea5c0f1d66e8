"""`lightdp audit run.jsonl`: sound logs hold, edited ones are found, and every client's μ is exact or bounded."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from lightdp import gaussian
from lightdp._validate import rounded_up
from lightdp.auditing import _recorded, recorded
from lightdp.auditing._exact import Exact, _largest, exact
from lightdp.auditing._schedule import Round, told
from lightdp.auditing._view import View
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError
from lightdp.repair import RETRIES
from lightdp.training.config import Config
from lightdp.training.statement import statement
from support import oracles
from support.audited_logs import a_plan, lines_of, saved, some_rounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightdp.planning import Plan
    from support.audited_logs import Lines, Rounds
    from support.command_line import Run


def sets(clients: int, rounds: Rounds) -> list[tuple[ClientSet, ClientSet]]:
    return [(ClientSet.of(clients, used), ClientSet.of(clients, late)) for used, late in rounds]


@pytest.fixture
def sound() -> Lines:
    plan = a_plan()
    return lines_of(plan, some_rounds(plan, 5))


def test_a_sound_log_holds_and_every_client_is_recomputed(tmp_path: Path, sound: Lines) -> None:
    found = recorded(saved(tmp_path / "run.jsonl", sound))
    facts = found.to_dict()
    assert found.problems == ()
    assert facts["recomputed"]["epsilon"] == sound[-1]["epsilon"]
    for name in ("budget", "logged", "recomputed", "exact"):
        assert facts[name]["epsilon"] == pytest.approx(gaussian.epsilon(facts[name]["mu"], 1e-5))
        assert facts[name]["found"] == pytest.approx(gaussian.power(facts[name]["mu"], 0.01))
    assert len(facts["clients"]) == 8
    assert facts["all_choices"] is False or facts["choices_of_colluders"] > 1
    for row in facts["clients"]:
        assert 0 <= row["mu_exact"] <= row["mu"] * (1 + 1e-9)
        assert row["epsilon"] == pytest.approx(gaussian.epsilon(row["mu"], 1e-5))
    assert json.loads(json.dumps(facts)) == facts


@pytest.mark.parametrize("calibration", ["exact", "local", "smpc", "central", "paper", "repair"])
def test_logs_of_every_calibration_hold(tmp_path: Path, calibration: str) -> None:
    plan = a_plan(calibration)
    found = recorded(saved(tmp_path / "run.jsonl", lines_of(plan, some_rounds(plan, 4))))
    assert found.problems == ()
    assert (found.exact is not None) == (calibration not in {"smpc", "central"})
    words = " ".join(found.notes)
    assert ("nobody sees anything but the sum" in words) == (calibration == "smpc")
    assert ("the server sees every update" in words) == (calibration == "central")


def test_a_log_without_noise_holds_unless_it_speaks_of_privacy(tmp_path: Path, sound: Lines) -> None:
    nothing = {"epsilon": None, "mu": None, "epsilon_claimed": None, "delta": None}
    lines = [line | {name: None for name in nothing if name in line} for line in sound]
    lines[0] |= {"plan": None, "config": {"scheme": "none"}}
    assert recorded(saved(tmp_path / "none.jsonl", lines)).holds
    lines[-1] |= {"epsilon": 1.0}
    assert not recorded(saved(tmp_path / "none.jsonl", lines)).holds


def lower_the_end(lines: Lines) -> None:
    lines[-1] |= {"epsilon": 0.9 * lines[-1]["epsilon"], "mu": None}


def lower_one_round(lines: Lines) -> None:
    lines[2]["epsilon"] *= 0.99


def lower_all(lines: Lines) -> None:
    for line in lines[1:]:
        line["epsilon"] *= 0.999
        line["mu"] = gaussian.mu(line["epsilon"], 1e-5, up=True)


def lower_mu(lines: Lines) -> None:
    lines[-1]["mu"] *= 0.9


def say_that_all_were_used(lines: Lines) -> None:
    lines[1] |= {"used": 8, "late": 0, "lost": 0, "late_clients": [], "lost_clients": []}


def call_late_clients_lost(lines: Lines) -> None:
    line = next(line for line in lines[1:-1] if line["late"] and line["used"])
    lost = sorted([*line["lost_clients"], *line["late_clients"]])
    line |= {"late": 0, "lost": len(lost), "late_clients": [], "lost_clients": lost}


def change_who_was_missing(lines: Lines) -> None:
    """The same numbers, other clients: the one that spent most becomes another."""
    for line in lines[1:-1]:
        if line["used"]:
            names = [*range(8 - line["late"] - line["lost"], 8)]
            line |= {"late_clients": names[: line["late"]], "lost_clients": names[line["late"] :]}


def take_out_the_last_round(lines: Lines) -> None:
    del lines[-2]
    lines[-1]["rounds"] -= 1


def take_out_a_round_and_number_anew(lines: Lines) -> None:
    del lines[2]
    for number, line in enumerate(lines[1:-1], 1):
        line["round"] = number
    lines[-1]["rounds"] -= 1


def more_noise_in_the_plan(lines: Lines) -> None:
    for name in ("sigma_individual", "sigma_effective", "sigma_pairwise", "noise_multiplier"):
        lines[0]["plan"][name] *= 1.1


def more_noise_and_all_that_follows(lines: Lines) -> None:
    """σ, every ε and μ changed together: what is left is the noise that the rounds had."""
    plan = a_plan()
    more = type(plan)(
        plan.request, type(plan.noise)(plan.gamma, 1.1 * plan.sigma_individual, 1.1 * plan.sigma_effective)
    )
    stds = [line["noise_std"] for line in lines[1:-1]]
    lines[:] = lines_of(more, some_rounds(plan, 5))
    for line, std in zip(lines[1:-1], stds, strict=True):
        line["noise_std"] = std


def more_rounds_than_the_budget_has(lines: Lines) -> None:
    plan = a_plan()
    lines[:] = lines_of(plan, [(list(range(8)), [])] * 30)


def more_colluders_in_the_end(lines: Lines) -> None:
    lines[-1]["delta"] = 1e-6


def too_few_used(lines: Lines) -> None:
    lines[1] |= {"used": 3, "lost": 5, "late": 0, "late_clients": [], "lost_clients": [3, 4, 5, 6, 7]}


def numbers_that_do_not_add_up(lines: Lines) -> None:
    lines[1]["lost"] += 1


def a_client_that_is_none(lines: Lines) -> None:
    line = next(line for line in lines[1:-1] if line["lost"])
    line["lost_clients"] = [*line["lost_clients"][:-1], 8]


EDITS: dict[Callable[[Lines], None], str] = {
    lower_the_end: "end: the log says ε =",
    lower_one_round: "round 2: the log says ε =",
    lower_all: "round 1: the log says ε =",
    lower_mu: "end: μ =",
    say_that_all_were_used: "round 1: the log says ε =",
    call_late_clients_lost: "its rounds give only",
    change_who_was_missing: "the log says ε =",
    take_out_the_last_round: "end: the log says ε = ",
    take_out_a_round_and_number_anew: "rounds are missing or changed",
    more_noise_in_the_plan: "plan: epsilon_true =",
    more_noise_and_all_that_follows: "times the plan's",
    more_rounds_than_the_budget_has: "more than the budget of 6",
    more_colluders_in_the_end: "end: delta = 1e-06 is not the plan's, 1e-05",
    too_few_used: "3 used clients are too few for a sum",
    numbers_that_do_not_add_up: "must add up to 8 clients",
    a_client_that_is_none: "lost_clients must",
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_log_does_not_hold(tmp_path: Path, sound: Lines, edit: Callable[[Lines], None]) -> None:
    lines = copy.deepcopy(sound)
    edit(lines)
    found = recorded(saved(tmp_path / "run.jsonl", lines))
    assert not found.holds
    assert any(EDITS[edit] in problem for problem in found.problems), found.problems


def less_noise_than_said(lines: Lines) -> None:
    """σ_U and σ_K a hundredth, with all that is said of the rounds' noise; σ_eff, and so every ε, is left."""
    for name in ("sigma_individual", "sigma_pairwise"):
        lines[0]["plan"][name] /= 100
    for line in lines[1:-1]:
        line |= {name: line[name] / 100 for name in ("noise_std", "residual_std")}


def no_noise_of_clients(lines: Lines) -> None:
    lines[0]["plan"] |= {"sigma_individual": 0.0, "sigma_pairwise": 0.0, "wire_bits": 32}


def more_pairwise_noise(lines: Lines) -> None:
    plan = lines[0]["plan"]
    plan |= {"gamma": plan["gamma"] * 100, "sigma_pairwise": plan["sigma_pairwise"] * 10}


@pytest.mark.parametrize(("rate", "law"), [(1.0, None), (1.0, "my own"), (0.2, None)])
@pytest.mark.parametrize("edit", [less_noise_than_said, more_pairwise_noise])
@pytest.mark.parametrize("calibration", ["exact", "paper", "local", "smpc", "central"])
def test_noise_that_its_settings_do_not_give_is_found(
    tmp_path: Path, calibration: str, edit: Callable[[Lines], None], rate: float, law: str | None
) -> None:
    """Also where no exact covariance shows it: beyond 2,000 uploads, or with sampled batches."""
    plan = a_plan(calibration, clients=50, colluders=10, stragglers=5, rounds=45, sampling_rate=rate, unit="record")
    lines = lines_of(plan, [(list(range(50)), [])] * (45 if rate == 1 else 1))
    if law is not None:
        lines[0]["plan"]["straggler_law"] = law
    claims = ("the claimed ε = 6 does not hold",) if calibration == "paper" and rate == 1 else ()
    found = recorded(saved(tmp_path / "run.jsonl", lines)).problems
    assert tuple(each.split(";")[0] for each in found) == claims
    edit(lines)
    if lines[0]["plan"]["sigma_individual"] == 0 and edit is less_noise_than_said:
        no_noise_of_clients(lines)
        lines[0]["plan"]["sigma_individual"] = 1.0
    elif lines[0]["plan"]["gamma"] == 0 and edit is more_pairwise_noise:
        lines[0]["plan"] |= {"gamma": 1.0, "sigma_pairwise": lines[0]["plan"]["sigma_individual"]}
    words = " ".join(recorded(saved(tmp_path / "run.jsonl", lines)).problems)
    assert "does not follow from its settings" in words


def test_an_effective_noise_that_flatters_the_plan_of_repair_is_found(tmp_path: Path) -> None:
    plan = a_plan()
    more = type(plan)(plan.request, type(plan.noise)(plan.gamma, plan.sigma_individual, 2 * plan.sigma_effective))
    lines = lines_of(plan, some_rounds(plan, 3))
    lines[0]["plan"] = more.to_dict()
    (problem,) = recorded(saved(tmp_path / "run.jsonl", lines)).problems
    assert "sigma_effective" in problem
    assert "another version of lightdp" in problem


def test_lines_that_contradict_each_other_do_not_hold(run: Run, tmp_path: Path, sound: Lines) -> None:
    for lines, words in (
        ([*sound[:2], *sound[3:]], "round must be 2, the next one, got round=3"),
        ([*sound[:-2], sound[-1]], "rounds must be 4, as many as were recorded, got rounds=5"),
        ([*sound, sound[-1]], "nothing may follow the end"),
    ):
        done = run("audit", saved(tmp_path / "run.jsonl", lines))
        assert (done.code, done.err) == (1, "")
        assert words in " ".join(done.out.split())
        facts = json.loads(run("audit", tmp_path / "run.jsonl", "--json").out)
        assert facts["holds"] is False
        assert words in facts["problems"][0]


def stated(plan: Plan, rounds: Rounds, **config: Any) -> Lines:
    """A log with the settings and the statement of a real run."""
    names = ("clients", "colluders", "stragglers", "rounds", "epsilon", "delta", "adjacency", "reserve", "unit", "clip")
    settings = {name: getattr(plan.request, name) for name in names} | {"fidelity": "distribution"} | config
    lines = lines_of(plan, rounds)
    lines[0]["config"] |= settings
    made = Config(**lines[0]["config"])
    lines[-1]["statement"] = statement(made, plan, lines[-1]["epsilon"], rounds)
    return lines


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("any 2 other clients", "any 7 other clients", "not what the rounds give: 'Whether everything"),
        ("ε = ", "ε = 0.", "not what the rounds give: 'Whether everything"),
        ("at most ", "at most 0.", "not what the rounds give: 'An attacker"),
        ("protects nobody", "protects everybody", "leaves out: 'This was a simulation"),
    ],
)
def test_a_statement_that_was_changed_is_found(tmp_path: Path, old: str, new: str, words: str) -> None:
    plan = a_plan()
    lines = stated(plan, some_rounds(plan, 3))
    found = recorded(saved(tmp_path / "run.jsonl", lines))
    assert found.problems == ()
    assert any("protects nobody" in each for each in found.notes)
    lines[-1]["statement"] = [each.replace(old, new) for each in lines[-1]["statement"]]
    assert words in " ".join(recorded(saved(tmp_path / "run.jsonl", lines)).problems)


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", 1.0), ("colluders", 7), ("delta", 1e-9), ("unit", "record"), ("rounds", 99), ("scheme", "local"),
     ("degree", 2), ("clip", 0.1)],
)  # fmt: skip
def test_settings_that_are_not_the_plans_are_found(tmp_path: Path, name: str, value: object) -> None:
    plan = a_plan()
    lines = stated(plan, some_rounds(plan, 3))
    lines[0]["config"][name] = value
    assert f"config: {name} = {value!r}" in " ".join(recorded(saved(tmp_path / "run.jsonl", lines)).problems)


def test_a_log_without_noise_whose_statement_promises_some_does_not_hold(tmp_path: Path, sound: Lines) -> None:
    nothing = {"epsilon": None, "mu": None, "epsilon_claimed": None, "delta": None}
    lines = [line | {name: None for name in nothing if name in line} for line in sound]
    lines[0] |= {"plan": None, "config": {"scheme": "none"}}
    found = recorded(saved(tmp_path / "none.jsonl", lines))
    assert "nothing is guaranteed to anybody" in found.verdict
    assert found.verdict in [*found.shown()]
    lines[-1]["statement"] = ["Everybody is safe."]
    assert not recorded(saved(tmp_path / "none.jsonl", lines)).holds


def test_an_unfinished_log_says_so_and_ends_with_0(run: Run, tmp_path: Path, sound: Lines) -> None:
    done = run("audit", saved(tmp_path / "run.jsonl", sound[:-1]))
    assert (done.code, "unfinished: " in done.out, "holds:" in done.out) == (0, True, False)
    done = run("audit", saved(tmp_path / "run.jsonl", sound[:1]))
    assert (done.code, "the log has no rounds" in done.out, "holds:" in done.out) == (0, True, False)


def test_a_claim_of_the_papers_formulas_does_not_hold(run: Run, tmp_path: Path) -> None:
    plan = a_plan("paper", rounds=1)
    done = run("audit", saved(tmp_path / "run.jsonl", lines_of(plan, [(list(range(8)), [])] * 20)))
    assert done.code == 1
    assert "the claimed ε = 6 does not hold; the true one is as logged" in " ".join(done.out.split())
    assert "claimed  " in done.out
    assert "budget of the plan" not in done.out


def test_an_upload_of_a_void_round_is_not_called_late(tmp_path: Path) -> None:
    rounds: Rounds = [([0, 1, 2, 3, 4, 5], [6]), ([], [0, 1, 6]), ([*range(8)], [])]
    found = recorded(saved(tmp_path / "run.jsonl", lines_of(a_plan(), rounds)))
    assert found.problems == ()
    assert [(row["used"], row["late"], row["void"]) for row in found.clients[:3]] == [(2, 0, 1), (2, 0, 1), (2, 0, 0)]
    assert [(row["used"], row["late"], row["void"]) for row in found.clients[6:]] == [(1, 1, 1), (1, 0, 0)]
    head = next(line for line in found.shown() if not isinstance(line, str) and line.columns[0].header == "client")
    assert [column.header for column in head.columns][:4] == ["client", "used", "late", "void"]


def test_clients_that_are_not_listed_are_counted(tmp_path: Path) -> None:
    plan = a_plan(clients=14)
    found = recorded(saved(tmp_path / "run.jsonl", lines_of(plan, some_rounds(plan, 3))))
    most = sorted((row["mu"] for row in found.to_dict()["clients"]), reverse=True)[10]
    assert f"... and 4 more, μ at most {rounded_up(most)}" in [*found.shown()]


@pytest.mark.parametrize("joins", [(), (0,), (0, 3, 4)])
@pytest.mark.parametrize("calibration", ["repair", "exact"])
def test_under_grace_a_log_holds_that_names_who_joined_the_next_sum(
    tmp_path: Path, calibration: str, joins: tuple[int, ...]
) -> None:
    """With three joining, too few are on time, and whole rounds wait for the next sum."""
    plan = a_plan(calibration, grace=1)
    rounds = some_rounds(plan, 5)
    lines = lines_of(plan, rounds, joins=joins)
    found = recorded(saved(tmp_path / "run.jsonl", lines))
    assert found.problems == ()
    assert [(list(used), list(late)) for used, late in found.rounds] == rounds
    assert [row["used"] for row in found.clients] == [sum(i in used for used, _ in rounds) for i in range(8)]
    assert found.exact is not None
    assert found.spent == lines[-1]["epsilon"]


def joined_forgotten(lines: Lines) -> None:
    lines[3] |= {"joined": 0, "joined_clients": []}


def joined_invented(lines: Lines) -> None:
    lines[2]["joined_clients"] = [1]


def joined_too_few(lines: Lines) -> None:
    lines[2] |= {"used": 0, "late": 7, "lost": 1, "late_clients": [*range(7)], "lost_clients": [7]}
    lines[3] |= {"joined": 4, "joined_clients": [0, 1, 2, 3]}


def joined_unnamed(lines: Lines) -> None:
    lines[2]["joined_clients"] = lines[2]["joined"] = None


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (joined_forgotten, "round 2: the log says ε = "),
        (
            joined_invented,
            "round 1: the clients that joined the next sum are not as many",
        ),
        (joined_too_few, "round 2: 4 used clients are too few for a sum"),
        (joined_unnamed, "round 1: late_clients, lost_clients and, in the next line, joined_clients must be named"),
    ],
)
def test_a_log_whose_joined_clients_were_edited_is_found(
    tmp_path: Path, edit: Callable[[Lines], None], words: str
) -> None:
    plan = a_plan(grace=1)
    rounds: Rounds = [([0, 1, 2, 3, 4, 5], [6]), ([0, 1, 2, 3, 4, 5, 6], []), ([*range(8)], []), ([*range(7)], [7])]
    lines = lines_of(plan, rounds, joins=(0,))
    edit(lines)
    problems = recorded(saved(tmp_path / "run.jsonl", lines)).problems
    assert any(each.startswith(words) for each in problems), problems


def test_who_joined_contradicts_a_plan_without_grace(tmp_path: Path) -> None:
    lines = lines_of(a_plan(), [([0, 1, 2, 3, 4, 5], [6, 7])] * 3)
    lines[2] |= {"joined": 1, "joined_clients": [6]}
    problems = recorded(saved(tmp_path / "run.jsonl", lines)).problems
    assert "round 2: 1 clients joined from the round before, but the plan has no grace" in problems


def test_the_last_round_of_an_unfinished_log_waits_for_its_final_set(tmp_path: Path) -> None:
    plan = a_plan(grace=1)
    lines = lines_of(plan, some_rounds(plan, 4, void=None), joins=(0,))[:-1]
    found = recorded(saved(tmp_path / "run.jsonl", lines))
    assert (found.problems, len(found.rounds)) == ((), 3)
    assert "The last round is not counted" in found.notes[-1]
    assert found.spent == lines[-2]["epsilon"]


def test_an_old_log_has_bounds_and_a_lowered_one_is_found(tmp_path: Path, sound: Lines) -> None:
    new = ("mu", "late_clients", "lost_clients")
    lines = [{name: value for name, value in line.items() if name not in new} for line in sound]
    found = recorded(saved(tmp_path / "old.jsonl", lines))
    assert found.holds
    assert found.bounds is not None
    assert found.bounds[0] <= sound[-1]["epsilon"] <= found.bounds[1]
    for line in lines[1:]:
        line["epsilon"] *= 0.5
    assert "at least" in recorded(saved(tmp_path / "old.jsonl", lines)).problems[0]


def test_an_old_log_in_which_everybody_was_used_is_recomputed_exactly(tmp_path: Path) -> None:
    plan = a_plan()
    lines = lines_of(plan, [(list(range(8)), [])] * 3)
    lines = [{name: value for name, value in line.items() if not name.endswith("_clients")} for line in lines]
    found = recorded(saved(tmp_path / "old.jsonl", lines))
    assert (found.holds, found.bounds) == (True, None)
    assert found.exact is not None
    assert found.odometer is not None
    assert np.sqrt(found.exact.squares) * plan.sensitivity / plan.sigma_individual == pytest.approx(found.odometer.mu())


def test_a_sampled_log_is_recomputed_without_mu_gdp(tmp_path: Path) -> None:
    plan = a_plan(unit="record", sampling_rate=0.2, rounds=9)
    lines = lines_of(plan, some_rounds(plan, 3, void=None))
    lines[1]["epsilon"] = lines[1]["mu"] = None  # not computed in every round
    found = recorded(saved(tmp_path / "run.jsonl", lines))
    assert found.problems == ()
    assert found.exact is None
    assert "not μ-GDP" in " ".join(found.notes)
    (said,) = (each for each in found.shown() if isinstance(each, str) and each.startswith("An attacker"))
    share = float(said.split("at most ")[1].split(" %")[0]) / 100
    assert 0.01 < share < 0.5 * math.exp(found.spent or 0.0) * 0.01  # two points say more than the plan's δ alone
    lines[-1]["epsilon"] *= 0.99
    assert not recorded(saved(tmp_path / "run.jsonl", lines)).holds


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("calibration", "grace"), [("repair", 0), ("repair", 1), ("exact", 0)])
def test_the_exact_cost_is_that_of_the_oracle_over_all_colluders(calibration: str, grace: int, seed: int) -> None:
    plan = a_plan(calibration, clients=5, colluders=1, stragglers=2, gamma=3.0, grace=grace)
    rounds = some_rounds(plan, 4 + 2 * grace, seed, void=seed)
    found = exact(plan, sets(5, rounds), closing=False)
    assert found is not None
    assert found.complete
    for client in range(5):
        others = [i for i in range(5) if i != client]
        worst = max(
            oracles.worst_mu_squared(
                oracles.loss_matrix(
                    5, 3.0, rounds, client=client, adjacency=~np.eye(5, dtype=bool), colluders=colluders,
                    retries=RETRIES if plan.repairs else -1, grace=grace,
                )
            )
            for colluders in itertools.combinations(others, 1)
        )  # fmt: skip
        assert found.squares[client] == pytest.approx(worst, rel=1e-9)


@pytest.mark.parametrize("late", [1, 2, 3, 4])
def test_a_repair_is_tried_as_often_as_clients_try_it(late: int) -> None:
    """Clients 1 and 2 were used while client 0 was late, and then come too late so often."""
    plan = a_plan(clients=4, colluders=0, stragglers=2, gamma=3.0)
    rounds: Rounds = [([1, 2, 3], [0]), *[([0, 3], [1, 2])] * late, ([0, 1, 2, 3], [])]
    found = exact(plan, sets(4, rounds), closing=False)
    assert found is not None
    everybody = ~np.eye(4, dtype=bool)
    matrix = oracles.loss_matrix(4, 3.0, rounds, client=0, adjacency=everybody, retries=RETRIES)
    assert found.squares[0] == pytest.approx(oracles.worst_mu_squared(matrix), rel=1e-9)


def test_a_run_without_a_budget_may_spend_more_than_was_asked_for(tmp_path: Path) -> None:
    plan = a_plan("exact", rounds=1)
    lines = lines_of(plan, [(list(range(8)), [])] * 20, epsilon_per="round")
    assert lines[-1]["epsilon"] > plan.budget
    assert recorded(saved(tmp_path / "run.jsonl", lines)).problems == ()


@pytest.mark.parametrize("grace", [0, 1])
def test_a_closing_round_costs_as_one_in_which_everybody_repairs(grace: int) -> None:
    """Under grace two: the first repairs round 0, the second round 1."""
    plan = a_plan(clients=5, colluders=0, stragglers=2, gamma=3.0, grace=grace)
    rounds: Rounds = [([0, 1, 2], [3]), ([0, 1, 2, 3], [4])]
    closed = exact(plan, sets(5, rounds), closing=True)
    left = exact(plan, sets(5, rounds), closing=False)
    assert closed is not None
    assert left is not None
    assert closed.squares[4] > left.squares[4] * 1.01  # its late round is repaired only in the closing one
    view = View(plan, told(schedule(5, rounds, grace)), colluders=())
    assert closed.squares[0] == pytest.approx((view.mu * plan.sigma_individual / plan.sensitivity) ** 2)


def schedule(clients: int, rounds: Rounds, grace: int) -> list[Round]:
    """These rounds, with all used clients on time, and closing ones in which everybody answers."""
    everybody = ClientSet.all(clients)
    listed = [*((*each, False) for each in sets(clients, rounds)), *[(everybody, ~everybody, True)] * (1 + grace)]
    return [Round(used, late, closing, used if grace else None) for used, late, closing in listed]


def test_too_many_uploads_are_left_to_the_odometer(tmp_path: Path) -> None:
    plan = a_plan(clients=50, colluders=10, stragglers=5, rounds=90)
    found = recorded(saved(tmp_path / "run.jsonl", lines_of(plan, some_rounds(plan, 45, void=None))))
    assert (found.problems, found.exact) == ((), None)
    assert "by the odometer alone" in found.notes[-1]


def test_many_histories_are_searched_for_the_worst_colluders() -> None:
    plan = a_plan(clients=12, colluders=4, stragglers=3)
    found = exact(plan, sets(12, some_rounds(plan, 8)), closing=False)
    assert found is not None
    assert not found.complete
    assert (found.squares > 0).all()


def test_the_command_prints_the_figures_and_exits_with_one_if_the_log_does_not_hold(
    run: Run, tmp_path: Path, sound: Lines
) -> None:
    file = saved(tmp_path / "run.jsonl", sound)
    good = run("audit", file)
    assert (good.code, good.err) == (0, "")
    for words in ("LightDP, repair, 5 rounds", "exact, over", "μ exact", "An attacker who wrongly accuses", "holds:"):
        assert words in good.out
    lower_all(sound)
    bad = run("audit", saved(file, sound), "--json")
    assert bad.code == 1
    facts: dict[str, Any] = json.loads(bad.out)
    assert facts["holds"] is False
    assert math.isclose(facts["recomputed"]["epsilon"], facts["logged"]["epsilon"] / 0.999)


def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path, sound: Lines) -> None:
    del sound[0]["plan"]["sigma_individual"]
    with pytest.raises(ArgumentError, match="plan must have sigma_individual to be audited"):
        recorded(saved(tmp_path / "run.jsonl", sound))


def test_a_closed_pipe_does_not_change_the_exit_code(tmp_path: Path, sound: Lines) -> None:
    for lines, code in ((sound, 0), ([*sound[:2], *sound[3:]], 1)):
        command = [sys.executable, "-m", "lightdp", "audit", str(saved(tmp_path / "run.jsonl", lines))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait() == code


HOSTILE: dict[str, dict[str, Any]] = {
    "4 billion clients": {"clients": 4 * 10**9, "degree": 4 * 10**9 - 1},
    "stragglers": {"stragglers": 4 * 10**9},
    "hardly any noise": {"sigma_effective": 1e-300, "sigma_individual": 1e-320},
    "no noise": {"sigma_individual": 0.0},
    "a list": {"gamma": [1]},
    "a law": {"straggler_law": "binomial(8, e-e) up to 2"},
    "text": {"rounds": "ten"},
    "a huge budget": {"epsilon": 1e308},
    "a tiny clip": {"clip": 1e-320},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_plan_ends_with_one_line(run: Run, tmp_path: Path, name: str) -> None:
    lines = lines_of(a_plan("exact"), [(list(range(8)), [])] * 3)
    lines[0]["plan"] |= HOSTILE[name]
    done = run("audit", saved(tmp_path / "run.jsonl", lines))
    assert done.code in ({1, 2} if name == "a huge budget" else {2})
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) <= 1


@pytest.mark.parametrize(
    "config", [{"scheme": ["a"]}, {"scheme": {}}, {"epsilon_per": []}, {"unit": {}}, {"degree": []}]
)
def test_hostile_settings_are_found_or_refused(tmp_path: Path, sound: Lines, config: dict[str, Any]) -> None:
    sound[0]["config"] |= config
    sound[-1]["statement"] = ["All is well."]
    try:
        assert not recorded(saved(tmp_path / "run.jsonl", sound)).holds
    except ArgumentError as error:
        assert "cannot be audited" in str(error)  # noqa: PT017  either is right


@pytest.mark.parametrize("flag", [[], ["--client"]])
def test_what_is_no_regular_file_is_refused_unread(run: Run, tmp_path: Path, flag: list[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        done = run("audit", *flag, path)
        assert (done.code, len(done.err.splitlines())) == (2, 1)
        assert "must be a regular file" in done.err


@pytest.mark.parametrize("unit", ["record", "paper"])
def test_a_unit_of_the_end_that_is_not_the_plans_is_found(tmp_path: Path, sound: Lines, unit: str) -> None:
    sound[-1]["unit"] = unit
    problems = recorded(saved(tmp_path / "run.jsonl", sound)).problems
    assert problems == (f"end: unit = '{unit}' is not the plan's, 'client'",)


def test_an_exact_mu_above_the_odometer_is_reported(
    tmp_path: Path, sound: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the odometer counted too little for client 3: the covariance says more."""

    def more(*given: Any, **options: Any) -> Exact:
        found = exact(*given, **options)
        assert found is not None
        return replace(found, squares=found.squares * np.where(np.arange(8) == 3, 2.0, 1.0))

    monkeypatch.setattr(_recorded, "exact", more)
    found = recorded(saved(tmp_path / "run.jsonl", sound))
    assert found.problems == ("client 3: its exact μ exceeds what the odometer counts",)


def test_the_worst_signs_of_many_uploads_are_those_that_no_change_betters() -> None:
    """The signs of the largest eigenvector are often not; for 12 uploads all 4,096 can be tried."""
    every = np.array(list(itertools.product((1.0, -1.0), repeat=12)))
    bettered = 0
    for seed in range(20):
        square = np.random.default_rng(seed).normal(size=(12, 12))
        matrix = square @ square.T
        start = np.where(np.linalg.eigh(matrix)[1][:, -1] >= 0, 1.0, -1.0)
        flipped = np.array([np.where(np.arange(12) == i, -start, start) for i in range(12)])
        one = np.einsum("si,ij,sj->s", flipped, matrix, flipped).max()
        found, best = _largest(matrix), np.einsum("si,ij,sj->s", every, matrix, every).max()
        assert max(one, start @ matrix @ start) * (1 - 1e-9) <= found <= best * (1 + 1e-9)
        bettered += one > (start @ matrix @ start) * (1 + 1e-6)
    assert bettered > 0


def test_a_log_from_before_grace_is_read(tmp_path: Path, sound: Lines) -> None:
    for name in ("grace", "momentum", "ema", "wire_steps", "rotate"):
        sound[0]["plan"].pop(name)
    sound[0]["plan"]["late"] = "seen"
    assert recorded(saved(tmp_path / "run.jsonl", sound)).to_dict()["recomputed"]["epsilon"] == sound[-1]["epsilon"]


def test_what_is_not_checked_of_noise_under_grace_is_said(tmp_path: Path) -> None:
    plan = a_plan("exact", grace=1, late=0.0)
    found = recorded(saved(tmp_path / "run.jsonl", lines_of(plan, some_rounds(plan, 5))))
    assert any("The noise of rounds is not checked" in note for note in found.notes)
