"""Runs whose rosters take turns and whose members come and go (C1)."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import lightdp
from lightdp import auditing, gaussian
from lightdp.accountant import Odometer
from lightdp.errors import ArgumentError
from lightdp.training import churn, step
from lightdp.training.channel import Protocol
from lightdp.training.checkpoint import State
from lightdp.training.clients import Clients
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run
from support.toy_runs import blobs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from lightdp.runlog import Line, RunLog

COHORTS: dict[str, Any] = {
    "population": 18, "clients": 5, "colluders": 1, "stragglers": 1, "rounds": 12, "epsilon": 60.0, "lr": 1.0,
    "scheme": "repair", "evaluate_every": 12,
}  # fmt: skip
CHURN: dict[str, Any] = COHORTS | {
    "churn": "0.1:0.1", "patience": 2, "least": 4, "stragglers": 2, "arrivals": "links:0.05", "rounds": 30,
}  # fmt: skip


@pytest.fixture
def toy() -> Dataset:
    return blobs()


def played(path: Path, toy: Dataset, settings: dict[str, Any], **changed: Any) -> RunLog:
    return Run(Config(**settings | changed), path, dataset=toy).finish()


def test_members_leave_and_come_back_once_before_a_round_also_after_a_checkpoint(tmp_path: Path, toy: Dataset) -> None:
    run, fresh = (Run(Config(**CHURN | {"churn": "0.5:0.5"}), tmp_path / name, dataset=toy) for name in "ab")
    members = run.members
    for number in (1, 2):
        members.come_and_go(number)
        away = set(members.away)
        members.come_and_go(number)
        assert members.away == away
    assert members.away
    fresh.members.load(members.state())
    fresh.members.come_and_go(2)
    assert fresh.members.away == away
    fresh.members.come_and_go(3)
    assert fresh.members.away != away


def test_who_waits_and_leaves_or_is_away_when_its_roster_is_closed_waits_no_more(tmp_path: Path, toy: Dataset) -> None:
    members = Run(Config(**CHURN | {"churn": "1:0"}), tmp_path / "run.jsonl", dataset=toy).members
    found = members.next()
    assert found is not None
    roster, gone = found[0], found[0].members[0]
    members.away.add(gone)
    members.close(roster)
    assert members.waiting == [*roster.members[1:]]
    members.come_and_go(1)  # everybody leaves
    assert members.waiting == []


def test_who_has_no_budget_for_a_first_round_is_out_when_its_roster_is_closed(tmp_path: Path, toy: Dataset) -> None:
    run = Run(Config(**COHORTS), tmp_path / "run.jsonl", dataset=toy)
    members, found = run.members, run.members.next()
    assert run.plan is not None
    assert found is not None
    roster, client = found[0], found[0].members[2]
    members._spent[client] = Counter({0.999 * gaussian.mu(run.plan.budget, run.plan.delta) ** 2: 1})
    members.close(roster)
    assert members.spent == [client]
    assert members.waiting == [each for each in roster.members if each != client]


def lines_of(log: RunLog) -> list[Line]:
    return [log.started, *log.rounds, dataclasses.replace(log.outcome, seconds=0.0)]


def test_cohorts_are_of_every_member_and_take_turns(tmp_path: Path, toy: Dataset) -> None:
    log = played(tmp_path / "run.jsonl", toy, COHORTS, consecutive=2)
    assert [len(members) for members in log.rosters.values()] == [6, 6, 6]
    assert sorted(client for members in log.rosters.values() for client in members) == [*range(18)]
    assert [line.roster for line in log.rounds] == [0, 0, 1, 1, 2, 2] * 2
    for line in log.rounds:
        assert line.used + line.late + line.lost == 6
        assert {*(line.late_clients or ()), *(line.lost_clients or ())} <= set(log.rosters[line.roster or 0])
    other = played(tmp_path / "other.jsonl", toy, COHORTS, seed=1)
    assert other.rosters != log.rosters


def test_each_client_has_spent_what_its_rosters_cost_and_no_more_than_its_budget(tmp_path: Path, toy: Dataset) -> None:
    run = Run(Config(**CHURN), tmp_path / "run.jsonl", dataset=toy)
    log = run.finish()
    assert run.plan is not None
    plan, squares = run.plan, np.zeros(18)
    last = {line.roster: line.round for line in log.rounds}
    closed = {each["roster"] for line in log.rounds for each in line.closed or ()}
    assert len(closed) >= 2
    assert len(log.rosters) > 3
    for number, members in log.rosters.items():
        odometer, sent = Odometer(plan.among(len(members))), set()
        for line in log.rounds[: last.get(number, 0)]:
            if line.roster == number:
                late = {members.index(client) for client in line.late_clients or ()}
                lost = {members.index(client) for client in line.lost_clients or ()}
                odometer.record(set(range(len(members))) - late - lost, late)
                sent |= set(range(len(members))) - lost
        for place, client in enumerate(members):
            counted = odometer.counted(worst=number in closed)
            squares[client] += counted.mu()[place] ** 2 if place in sent or number not in closed else 0.0
    spent = [gaussian.epsilon(math.sqrt(each), plan.delta) for each in squares]
    assert log.outcome.epsilon_clients == pytest.approx(spent, rel=1e-9)
    assert log.epsilon == pytest.approx(max(spent), rel=1e-9)
    assert max(spent) <= plan.budget
    assert auditing.recorded(log.path).holds


@pytest.mark.parametrize("grace", [0, 1])
def test_real_members_and_the_simulator_have_the_same_sets_and_ledgers(
    tmp_path: Path, toy: Dataset, grace: int
) -> None:
    changed = {"epsilon": 500.0, "grace": grace, "late_by_one": 0.4, "late_seen": 0.2, "arrivals": "links:0.2"}
    run = Run(Config(**CHURN | changed | {"fidelity": "protocol"}), tmp_path / "a.jsonl", dataset=toy)
    real, simulated = run.finish(), played(tmp_path / "b.jsonl", toy, CHURN, **changed)
    same = ("roster", "used", "late_clients", "lost_clients", "joined_clients", "epsilon", "formed", "closed",
            "away_clients", "waiting_clients", "spent_clients")  # fmt: skip
    for a, b in zip(real.rounds, simulated.rounds, strict=True):
        assert [getattr(a, name) for name in same] == [getattr(b, name) for name in same]
        assert (a.noise_std, a.residual_std) == pytest.approx((b.noise_std, b.residual_std), rel=1e-6)
    assert real.outcome.epsilon_clients == simulated.outcome.epsilon_clients
    assert any(line.closed for line in real.rounds)
    assert (real.accuracy or 0) > 0.9
    assert auditing.recorded(real.path).holds
    for roster in run.members.rosters.values():  # what members count themselves is never less
        assert isinstance(roster.channel, Protocol)
        for client, member in zip(roster.members, roster.channel.clients, strict=True):
            assert (real.outcome.epsilon_clients or [])[client] * (1 - 1e-9) <= member.epsilon(worst=True) <= 500


@pytest.mark.parametrize("changed", [{}, {"grace": 1, "late_by_one": 0.4, "late_seen": 0.2}, {"scheme": "none"}])
def test_a_run_with_members_that_come_and_go_resumes_to_the_same_log(
    tmp_path: Path, toy: Dataset, changed: dict[str, Any]
) -> None:
    settings = CHURN | changed
    whole = played(tmp_path / "whole.jsonl", toy, settings)
    cut = next(line.round for line in whole.rounds if line.closed) + 1  # a roster is over, and others have met since
    path = tmp_path / "cut.jsonl"
    lines = Run(Config(**settings), path, dataset=toy).lines()
    for _ in range(cut + 1):
        next(lines)
    with pytest.raises(KeyboardInterrupt):
        lines.throw(KeyboardInterrupt)  # type: ignore[attr-defined]
    resumed = Run(Config(**settings), path, resume=True, dataset=toy).finish()
    assert lines_of(resumed) == lines_of(whole)


def test_who_has_no_budget_left_is_out_and_the_run_ends_when_too_few_are_left(tmp_path: Path, toy: Dataset) -> None:
    late = {"arrivals": "uniform", "stragglers": 2, "late_seen": 1.0, "late": 0.0}  # costs more than was planned for
    log = played(tmp_path / "run.jsonl", toy, COHORTS, epsilon=3.0, rounds=90, evaluate_every=90, **late)
    assert log.outcome.stopped == "budget"
    assert log.outcome.rounds < 90
    assert max(log.outcome.epsilon_clients or [9.0]) <= 3
    assert any(line.spent_clients for line in log.rounds)
    out = [set(line.spent_clients or ()) for line in log.rounds]
    assert 18 - len(out[-1]) < 10  # those who are left cannot fill two rosters


def test_a_run_ends_when_nobody_comes_back(tmp_path: Path, toy: Dataset) -> None:
    log = played(tmp_path / "run.jsonl", toy, CHURN, churn="0.2:0", rounds=200, patience=1)
    assert log.outcome.stopped == "members"
    assert log.outcome.rounds < 200
    away = [len(line.away_clients or ()) for line in log.rounds]
    assert away == sorted(away)


def test_rounds_that_no_roster_can_have_pass_until_enough_are_back(tmp_path: Path, toy: Dataset) -> None:
    log = played(tmp_path / "run.jsonl", toy, CHURN, churn="0.4:0.3", population=8, patience=1, rounds=40)
    idle = [line for line in log.rounds if line.roster is None]
    assert 0 < len(idle) < 40
    assert all((line.used, line.late, line.lost, line.noise_std) == (0, 0, 0, 0.0) for line in idle)
    assert log.outcome.stopped is None
    assert auditing.recorded(log.path).holds


@pytest.mark.parametrize("momentum", [0.0, 0.8])
def test_closing_rounds_leave_only_the_noise_that_stays(
    tmp_path: Path, momentum: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(self: Clients, model: object, number: int, senders: Sequence[int], bound: float) -> Iterator[Any]:
        del self, model, number, bound
        yield list(senders), torch.zeros(len(senders), 2002, device="cuda" if torch.cuda.is_available() else "cpu")

    monkeypatch.setattr(Clients, "updates", nothing)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(180, 1000)).astype(np.float32), np.arange(180) % 2
    wide = Dataset(name="wide", train_x=x, train_y=y, test_x=x[:10], test_y=y[:10], classes=2)
    config = Config(**COHORTS | {"unit": "client", "momentum": momentum, "arrivals": "uniform", "gamma": 40.0})
    run = Run(config, tmp_path / "run.jsonl", dataset=wide)
    start = run.state.weights.clone()
    log = run.finish()
    assert run.plan is not None
    plan, rounds = run.plan.among(6), len(log.rounds)
    reach = [sum(momentum**k for k in range(rounds - t)) for t in range(rounds)]  # of each step in the end
    stays = sum((line.noise_std or 0.0) ** 2 * each**2 for line, each in zip(log.rounds, reach, strict=True))
    closing = sum(plan.individual_in_sum(6) / 36 * reach[-k] ** 2 for k in (1, 2, 3))
    waits = sum(  # a residual acts by momentum from its round until the next turn of its roster
        (line.residual_std or 0.0) ** 2 * (now - then) ** 2
        for line, now, then in zip(log.rounds[:-3], reach[:-3], reach[3:], strict=True)
    )
    left = sum((line.residual_std or 0.0) ** 2 * reach[-3 + at] ** 2 for at, line in enumerate(log.rounds[-3:]))
    found = float((run.state.weights - start).var())
    error = 5 * math.sqrt(2 / 2002)
    assert (1 - error) * stays <= found <= (1 + error) * (stays + closing + waits)
    assert found < (1 - error) * (stays + left)  # as much as there would be without closing rounds


def test_what_a_waiting_roster_left_is_taken_out_of_velocity_weights_and_average(tmp_path: Path, toy: Dataset) -> None:
    run = Run(Config(**COHORTS | {"momentum": 0.9, "ema": 0.7}), tmp_path / "run.jsonl", dataset=toy)
    draw = torch.Generator().manual_seed(0)
    *totals, noise = torch.randn(5, run.parameters, generator=draw) * 100
    rosters = run.members.rosters

    def ended(extra: torch.Tensor, closing: torch.Tensor) -> list[torch.Tensor]:
        state = State(*torch.zeros(3, run.parameters))
        for number, total in zip((0, 1, 2, 1), totals, strict=True):
            step_total = total + extra if number == 0 else total
            state = step.stepped(run.config, state, rosters[number], step_total, rosters.values())
        state = step.mended(run.config, state, rosters[0], closing)
        return [state.velocity, state.weights, state.average]

    nothing = torch.zeros_like(noise)
    for wanted, found, other in zip(ended(nothing, nothing), ended(noise, -noise), ended(noise, nothing), strict=True):
        assert torch.allclose(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
        assert not torch.allclose(other, wanted, rtol=0, atol=1e-2 * float(wanted.abs().max()))


def test_members_leave_and_come_back_as_often_as_is_said() -> None:
    counts = np.array([[len(each) for each in churn.changed("0.1:0.4", 50, 7, number)] for number in range(1, 401)])
    for count, chance in zip(counts.sum(axis=0), (0.1, 0.4), strict=True):
        assert abs(count - 20_000 * chance) < 5 * math.sqrt(20_000 * chance * (1 - chance))
    assert churn.changed("0.5:0.5", 9, 1, 3) == churn.changed("0.5:0.5", 9, 1, 3) != churn.changed("0.5:0.5", 9, 2, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"churn": "0.1"}, r"churn must be LEAVE:JOIN, two probabilities in \[0, 1\], got churn='0.1'"),
        ({"churn": "0.1:1.5"}, "got churn='0.1:1.5'"),
        ({"churn": "a:b"}, "got churn='a:b'"),
        ({"churn": "nan:0"}, "got churn='nan:0'"),
        ({"population": 19}, "population must be .* got population=19"),
        ({"least": 10}, "least needs population or churn, got least=10"),
        ({"consecutive": 2}, "consecutive needs population or churn, got consecutive=2"),
        ({"patience": 2}, "patience needs population or churn, got patience=2"),
        ({"population": 100, "patience": 0}, "patience must be .* got patience=0"),
        ({"population": 100, "least": 21}, "least must be .* got least=21"),
        ({"population": 100, "sampling_rate": 0.5}, "1 with population or churn, got .*=0.5: .*lightdp.flower"),
        ({"population": 100, "links": "relayed"}, "without a simulated network"),
        ({"churn": "0.1:0.1", "late": "unseen"}, "late must be a share where members change rosters"),
    ],
)  # fmt: skip
def test_settings_of_members_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Config(**settings)


def test_a_roster_that_could_never_be_formed_is_refused_at_once(tmp_path: Path, toy: Dataset) -> None:
    with pytest.raises(ArgumentError, match="colluders"):
        played(tmp_path / "run.jsonl", toy, COHORTS, colluders=4, least=3, scheme="repair")


def test_the_plan_of_a_population_is_that_of_lightdp_plan(toy: Dataset) -> None:
    plan = Config(**COHORTS).plan(len(toy.train_y), 12, 16)
    assert plan is not None
    expected = lightdp.plan(
        clients=5, population=18, colluders=1, stragglers=1, rounds=12, epsilon=60, delta=1e-5, calibration="repair",
        late=0.0, parameters=12, records=300,
    )  # fmt: skip
    assert plan.digest() == expected.digest()
    assert plan.turns == 4


def test_a_changed_log_of_rosters_is_found_out(tmp_path: Path, toy: Dataset) -> None:
    log = played(tmp_path / "run.jsonl", toy, COHORTS)
    lines = [json.loads(text) for text in log.path.read_text().splitlines()]
    assert auditing.recorded(log.path).holds

    def problems(change: Any) -> str:
        changed = json.loads(json.dumps(lines))
        change(changed)
        path = tmp_path / "changed.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in changed))
        return " ".join(auditing.recorded(path).problems)

    def someone_else(changed: list[dict[str, Any]]) -> None:
        first, second = changed[1]["formed"][0]["members"], changed[1]["formed"][1]["members"]
        first[0] = second[0]
        first.sort()

    assert "end: client 3 has ε" in problems(lambda changed: changed[-1]["epsilon_clients"].__setitem__(3, 0.1))
    assert "members of roster 1 are in another one" in problems(someone_else)
    assert "is not open" in problems(lambda changed: changed[2].update(roster=7))
    assert "its noise is" in problems(lambda changed: changed[2].update(noise_std=1e-6))
    assert "the log says ε" in problems(lambda changed: changed[5].update(epsilon=0.5))
    assert "must add up" in problems(lambda changed: changed[5].update(used=changed[5]["used"] + 1))


@pytest.mark.parametrize("fidelity", ["distribution", "protocol"])
def test_rosters_with_drawn_masks_are_counted_as_an_audit_counts_them(
    tmp_path: Path, toy: Dataset, fidelity: Any
) -> None:
    """What masks cost counts once for each roster in which a client has sent, whoever waits or left."""
    drawn = {"scheme": "repair", "masks": "drawn", "epsilon": 8.0, "fidelity": fidelity, "gamma": 4.0}
    log = played(tmp_path / "run.jsonl", toy, CHURN, **drawn)
    assert log.started.plan is not None
    assert (log.started.plan["masks"], len(log.rosters) > 2) == ("drawn", True)
    found = auditing.recorded(log.path)
    assert found.problems == ()
    said = log.outcome.epsilon_clients or ()
    assert [row["epsilon"] for row in found.clients] == pytest.approx(list(said), rel=1e-9)
