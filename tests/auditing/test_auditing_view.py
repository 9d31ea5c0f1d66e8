"""Schedules, and what the adversary sees of them: worked out from the announcements, and as real histories have it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import lightdp
from lightdp.auditing import _stories
from lightdp.auditing._schedule import Round, answered, random_rounds, read_rounds, told
from lightdp.auditing._stories import Telling
from lightdp.auditing._view import View
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError
from lightdp.protocol.history import ClientHistory

if TYPE_CHECKING:
    from pathlib import Path

    from lightdp.planning import Plan


def planned(**changed: Any) -> Plan:
    asked: dict[str, Any] = {"clients": 6, "colluders": 2, "stragglers": 2, "rounds": 9, "epsilon": 8.0, "delta": 1e-5}
    return lightdp.plan(**(asked | {"calibration": "repair"} | changed))


def rounds(clients: int, *sets: tuple[list[int], list[int]]) -> list[Round]:
    return [Round(ClientSet.of(clients, used), ClientSet.of(clients, late)) for used, late in sets]


def test_one_round_without_stragglers_is_the_closed_form() -> None:
    """(E3): with n honest clients the cost is (1 + γ)/(nγ + 1)."""
    plan = planned(gamma=2.0)
    view = View(plan, told(rounds(6, (list(range(6)), []))))
    assert list(view.colluders) == [4, 5]
    expected = math.sqrt((1 + 2.0) / (4 * 2.0 + 1)) * plan.sensitivity / plan.sigma_individual
    assert view.mu == pytest.approx(expected, rel=1e-12)


def test_two_rounds_that_share_no_noise_add_up() -> None:
    plan = planned(gamma=2.0)
    one = View(plan, told(rounds(6, (list(range(6)), [])))).mu
    two = View(plan, told(rounds(6, (list(range(6)), []), (list(range(6)), [])))).mu
    assert two == pytest.approx(math.sqrt(2) * one, rel=1e-12)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("changed", [{}, {"colluders": 0, "stragglers": 4}])
@pytest.mark.parametrize("grace", [0, 1])
def test_random_schedules_are_seen_as_real_histories_have_them(grace: int, changed: dict[str, Any], seed: int) -> None:
    plan = planned(**changed, grace=grace)
    tellings = told(random_rounds(plan, 6, seed))
    view = View(plan, tellings)
    played = _stories.play(plan, [each for each in tellings if each.client not in view.colluders])
    assert len(played.sent) == len(view.uploads)
    np.testing.assert_allclose(view.covariance(1.0, plan.gamma), played.covariance(), atol=1e-9)
    assert view.mu == pytest.approx(math.sqrt(played.exact()[0]) * plan.sensitivity / plan.sigma_individual)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("grace", [0, 1])
def test_lies_are_seen_as_real_histories_have_them(grace: int, seed: int) -> None:
    plan = planned(clients=7, colluders=1, stragglers=4, gamma=5.0, grace=grace)
    for script, _ in _stories.climb(plan, _stories.rotation(plan), seed=seed, steps=12):
        played = _stories.play(plan, script.story(plan))
        if played.mine.size:
            view = View(plan, [each.telling for each in played.sent])
            np.testing.assert_allclose(view.covariance(1.0, plan.gamma), played.covariance(), atol=1e-9)


@pytest.mark.parametrize(("played", "tries_all"), [(5, True), (30, False)])
def test_no_single_change_of_sign_betters_the_signs(played: int, tries_all: bool) -> None:
    plan = planned(colluders=0, stragglers=4, rounds=40)
    view = View(plan, told(random_rounds(plan, played, 5)))
    assert view.worst_signs == tries_all
    precision = np.linalg.inv(view.covariance(1.0, plan.gamma))
    mine = view.mine.astype(float)
    best = view.signs @ precision @ view.signs
    assert set(np.abs(view.signs) == mine) == {True}
    for flipped in np.flatnonzero(mine):
        signs = view.signs.copy()
        signs[flipped] *= -1
        assert signs @ precision @ signs <= best + 1e-9
    assert best > mine @ precision @ mine


def test_colluders_are_neighbours_of_the_victim_on_a_sparse_graph() -> None:
    plan = planned(clients=10, degree=4, colluders=2)
    view = View(plan, told(random_rounds(plan, 2, 0)))
    assert set(view.colluders) <= set(plan.graph.neighbours()[0].tolist())
    assert len(view.colluders) == 2


def test_too_many_uploads_and_none_with_data_are_refused() -> None:
    plan = planned(clients=60, rounds=99)
    everybody = [Round(ClientSet.all(60), ClientSet.none(60))] * 40
    with pytest.raises(ArgumentError, match="at most 2000 uploads of honest clients, got 2320"):
        View(plan, told(everybody))
    with pytest.raises(ArgumentError, match="an upload of client 0 with data"):
        View(planned(), [Telling(1, ())])


def test_random_rounds_have_stragglers_late_and_void_ones_and_a_closing_round() -> None:
    plan = planned(rounds=60, straggler_law="uniform")
    drawn = [each for seed in range(8) for each in random_rounds(plan, 9, seed)]
    assert {len(each.used) for each in drawn if each.used and not each.closing} == {4, 5, 6}
    assert any(not each.used for each in drawn)
    assert any(each.used and each.late for each in drawn)
    assert sum(each.closing for each in drawn) == 8
    assert all(0 in random_rounds(plan, 9, seed)[0].used for seed in range(8))
    assert random_rounds(plan, 9, 4) == random_rounds(plan, 9, 4) != random_rounds(plan, 9, 5)


def test_under_grace_random_rounds_have_uploads_that_are_one_round_late_and_two_closing_rounds() -> None:
    plan = planned(rounds=60, grace=1)
    drawn = [random_rounds(plan, 9, seed) for seed in range(8)]
    for each in drawn:
        assert [one.closing for one in each] == [False] * 9 + [True] * 2
        assert all(refused is None for _, refused in answered(plan, told(each)))
    flat = [(one.used, one.on_time) for each in drawn for one in each if one.on_time is not None]
    assert len(flat) == 8 * 11
    assert any(used - on_time for used, on_time in flat)
    assert any(used and len(on_time) < 4 for used, on_time in flat)  # enough only with those that came late
    assert any(on_time and not used for used, on_time in flat)  # void


def test_a_training_whose_budget_is_used_up_ends() -> None:
    plan = planned(rounds=3, reserve="expected")
    drawn = random_rounds(plan, 40, 1)
    assert 3 <= len(drawn) < 40
    assert all(refused is None for _, refused in answered(plan, told(drawn)))


def test_clients_whose_budget_is_used_up_count_as_stragglers_and_are_not_drawn_again() -> None:
    """So many stay away as the law draws, with those whose budget is used up among them, and never more."""
    plan = planned(clients=8, colluders=1, stragglers=3, rounds=4, reserve="expected", straggler_law="pmf:0,0,0,1")
    neighbours, exhausted = plan.graph.neighbours().tolist(), 0
    for seed in range(12):
        histories = [ClientHistory(plan, i, bytes(32), neighbours[i]) for i in range(8)]
        for number, each in enumerate(random_rounds(plan, 30, seed)[:-1]):
            spent = {i for i, history in enumerate(histories) if history.odometer.exhausted()}
            exhausted += bool(spent)
            assert not spent & {*each.used, *each.late}
            present = each.used or each.late
            assert len(present) == 8 - 3
            for i, history in enumerate(histories):
                if i in each.used or i in each.late:
                    history.sent |= {number}
                history.learn([(number, (each.used,))])
    assert exhausted > 5


@pytest.mark.parametrize("late", [0.0, "unseen"])
def test_unseen_late_uploads_are_not_seen(late: float | str) -> None:
    plan = planned(rounds=60, late=late)
    drawn = [each for seed in range(8) for each in random_rounds(plan, 9, seed)]
    assert any(each.used and each.late for each in drawn) == (late == 0.0)


CSV = "used,late,closing\n0-3 5,4,\n0-5,,0\n,0-5,\n0-5,,1\n"


def test_a_csv_and_a_json_file_name_the_same_rounds(tmp_path: Path) -> None:
    plan, everybody = planned(), list(range(6))
    (tmp_path / "a.csv").write_text(CSV)
    listed = [
        {"used": [0, 1, 2, 3, 5], "late": [4]},
        {"used": everybody},
        {"used": [], "late": everybody, "closing": False},
        {"used": everybody, "closing": True},
    ]
    (tmp_path / "a.json").write_text(json.dumps(listed))
    one, other = (read_rounds(tmp_path / name, plan) for name in ("a.csv", "a.json"))
    assert one == other
    assert [(list(each.used), list(each.late), each.closing) for each in one] == [
        ([0, 1, 2, 3, 5], [4], False),
        (everybody, [], False),
        ([], everybody, False),
        (everybody, [], True),
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "used,late\n0-9,\n", "used in round 0 of schedule=.* must name clients below 6, got '0-9'"),
        ("a.csv", "used,late\n0 x,\n", "must be numbers and ranges such as 0-3 5, got '0 x'"),
        ("a.csv", "used,late\n0-5,3\n", r"late in round 0 .* must not name used clients, got \[3\]"),
        ("a.csv", "used,late\n0-1,\n", "used in round 0 .* must name at least 4 clients or none, got 2"),
        ("a.csv", "used,late,closing\n0-5,,1\n0-5,,\n", "round 0 .* must be the last if it is closing"),
        ("a.csv", "used,late,closing\n0-5,,maybe\n", "closing in round 0 .* must be 0 or 1, got 'maybe'"),
        ("a.csv", "who\n0\n", "round 0 .* must have used"),
        ("a.json", "{}", "must be random, a .csv file or a .json list"),
        ("a.json", "[[0]]", "round 0 .* must have used"),
        ("a.json", '[{"used": "all"}]', "must be numbers and ranges"),
        ("a.json", '[{"used": 3}]', "must be a list of client numbers, got 3"),
        ("a.json", '[{"used": [6]}]', "must be in 0..5"),
        ("a.json", "[", "schedule must be readable"),
        ("a.txt", "", "must be random, a .csv file or a .json list"),
    ],
)
def test_a_file_that_is_no_schedule_is_refused(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ArgumentError, match=words):
        read_rounds(tmp_path / name, planned())


def test_under_grace_a_file_names_who_was_on_time(tmp_path: Path) -> None:
    plan = planned(grace=1)
    (tmp_path / "a.csv").write_text("used,late,on_time,closing\n0-4,5,0-2,\n,0-3,1,\n0-5,,,1\n0-5,,0-5,1\n")
    (tmp_path / "b.json").write_text('[{"used": [0, 1, 2, 3]}]')
    first, void, *closing = read_rounds(tmp_path / "a.csv", plan)
    assert (first.on_time, void.on_time) == (ClientSet.of(6, [0, 1, 2]), ClientSet.of(6, [1]))
    assert [(each.closing, each.on_time) for each in closing] == [(True, ClientSet.none(6)), (True, ClientSet.all(6))]
    assert read_rounds(tmp_path / "b.json", plan)[0].on_time == ClientSet.of(6, range(4))
    for text, words in (
        ("used,late,on_time\n0-4,5,0-5\n0-5,,\n0-5,,", "leaves out clients that were on time"),
        ("used,closing\n0-5,1\n0-5,\n0-5,", "round 0 .* must be one of the last two if it is closing"),
        ("used,late,on_time\n,0-5,0-3\n0-5,,\n0-5,,", "leaves out clients that were on time"),
    ):
        (tmp_path / "a.csv").write_text(text)
        with pytest.raises(ArgumentError, match=words):
            read_rounds(tmp_path / "a.csv", plan)
    (tmp_path / "a.csv").write_text("used,on_time\n0-4,0-3\n")
    with pytest.raises(ArgumentError, match=r"round 0 .* must have used and may have late, closing"):
        read_rounds(tmp_path / "a.csv", planned())


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"schedule must be readable.*No such file"):
        read_rounds(tmp_path / "no.csv", planned())


def test_a_schedule_over_the_budget_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("used,late\n" + "0-5,\n" * 40)
    with pytest.raises(ArgumentError, match=r"client 0 would not answer schedule=.*over the budget"):
        read_rounds(tmp_path / "a.csv", planned(rounds=3))
