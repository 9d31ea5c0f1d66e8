from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any, ClassVar

import numpy as np
import pytest

import lightdp
from lightdp import gaussian
from lightdp.errors import ArgumentError, BudgetError
from lightdp.planning import CalibrationName, MasksName
from lightdp.planning._calibrate import paper_sigma
from lightdp_lab import compare
from lightdp_lab.compare import Setting
from lightdp_lab.schemes import SCHEMES, Cost, Faults, Links, Player, RoundFailedError, Smpc, Task, climb
from lightdp_lab.schemes.plain import LocalPaper, Plain
from lightdp_lab.schemes.secagg import SecAggPlus

TASK = Task(clients=12, colluders=2, stragglers=2, dimension=1500, epsilon=8.0, rounds=40)
SETTING = Setting(
    TASK, schemes=("plain", "local", "exact", "repair", "paper"), rounds_played=6, link_failure=0.08, seconds=10.0
)


class Slow(Plain):
    """Pretends to take so many seconds a value, and talks to a peer."""

    about = dataclasses.replace(Plain.about, name="slow", title="slow", talks=True)
    each: ClassVar[float] = 1e-3

    def round(self, updates: Any, net: Any) -> Any:
        result = super().round(updates, net)
        net.between(0, 1, bytes(self.task.dimension))
        with net.server():
            pass
        net.stages[-1].server += 1.0 + self.each * self.task.dimension
        return result


class Fragile(Plain):
    """Any client that is missing ends the round."""

    about = dataclasses.replace(Plain.about, name="fragile", title="fragile")

    def round(self, updates: Any, net: Any) -> Any:
        result = super().round(updates, net)
        if len(result.used) < self.task.clients:
            raise RoundFailedError("upload", f"{len(result.used)} clients, {self.task.clients} needed")
        return result


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return compare.compare(SETTING)


def row(record: dict[str, Any], scheme: str) -> dict[str, Any]:
    return next(row for row in record["rows"] if row["scheme"] == scheme)


@pytest.mark.parametrize("name", SCHEMES)
def test_any_scheme_has_a_row_with_its_figures_and_named_noise(name: str) -> None:
    task = dataclasses.replace(TASK, dimension=200)
    setting = Setting(task, schemes=(name,), peers=("relayed",), rounds_played=2, link_failure=0.0, seconds=1.0)
    (found,) = compare.compare(setting)["rows"]
    assert found["impossible"] is None
    assert found["completed"] == found["rounds"] >= 2
    assert found["up"] > 0
    assert found["trips"] >= 1
    assert found["modelled"] > 0.05
    spread = 8 * math.sqrt(2 / found["dimension_played"])
    assert found["noise_measured"] == pytest.approx(found["noise"], rel=spread, abs=1e-12)
    json.dumps(found, allow_nan=False)


def test_measured_noise_is_the_named_one_also_under_repair_and_losses(record: dict[str, Any]) -> None:
    assert any(len(SETTING.faults(k, "relayed", 1).down) > 0 for k in range(6))
    for name in ("local", "exact", "repair", "paper"):
        found = row(record, name)
        spread = 6 * math.sqrt(2 / 1500) + 0.02
        assert found["noise_measured"] == pytest.approx(found["noise"], rel=spread), name
        assert found["noise_measured"] != pytest.approx(1.5 * found["noise"], rel=spread)
    assert row(record, "plain")["noise"] == row(record, "plain")["noise_measured"] == 0
    assert row(record, "plain")["epsilon"] is None
    assert row(record, "plain")["mu"] is None


@pytest.mark.parametrize(
    ("changed", "law"),
    [
        ({"link_failure": 0.05}, "binomial:0.05"),
        ({"link_failure": 0.0, "dropout": 0.1}, "binomial:0.1"),
        ({"link_failure": 0.5, "dropout": 0.5}, "binomial:0.75"),
        ({"link_failure": 0.0}, "uniform"),
        ({"link_failure": 1.0}, "uniform"),
    ],
)
def test_lightdp_plans_for_the_stragglers_that_the_network_makes(changed: dict[str, Any], law: str) -> None:
    setting = dataclasses.replace(SETTING, **changed)
    assert setting.planned == dataclasses.replace(TASK, straggler_law=law)
    asked = dataclasses.replace(TASK, straggler_law="pmf:0.5,0.5")
    assert dataclasses.replace(setting, task=asked).planned == asked


def test_a_straggler_law_changes_the_noise_of_exact_and_repair_and_of_no_other(record: dict[str, Any]) -> None:
    assert record["setting"]["straggler_law"] == "binomial:0.08"
    law = dataclasses.replace(TASK, straggler_law="binomial:0.08")
    shared: dict[str, Any] = {"clients": 12, "colluders": 2, "stragglers": 2, "epsilon": 8.0, "delta": 1e-5}
    shared |= {"rounds": 40, "unit": "client", "straggler_law": "binomial:0.08"}
    names: tuple[CalibrationName, ...] = ("exact", "repair")
    others: tuple[CalibrationName, ...] = ("paper", "smpc", "local", "central")
    for name in names:
        masks: MasksName = "auto" if name == "repair" else "gaussian"  # which all others have
        assert law.plan(name) == lightdp.plan(**shared, calibration=name, masks=masks)
        assert law.plan(name).noise != TASK.plan(name).noise
        assert law.plan(name).epsilon() <= 8
    for name in others:
        assert law.plan(name) == TASK.plan(name)
    used = [12 - len(SETTING.faults(k, "relayed", 1).down) for k in range(6)]
    named = np.mean([law.plan("repair").individual_in_sum(count) for count in used]) / np.mean(used) ** 2
    assert row(record, "repair")["noise"] == pytest.approx(named)


def test_what_repair_takes_out_again_is_named_beside_what_stays(record: dict[str, Any]) -> None:
    used = [12 - len(SETTING.faults(k, "relayed", 1).down) for k in range(6)]
    plan = dataclasses.replace(TASK, straggler_law="binomial:0.08").plan("repair")
    left = np.mean([plan.sigma_pairwise**2 * count * (12 - count) for count in used]) / np.mean(used) ** 2
    assert row(record, "repair")["passing"] == pytest.approx(left)
    assert left > 0
    assert [row(record, name)["passing"] for name in ("plain", "local", "exact", "paper")] == [0, 0, 0, 0]


def test_noise_of_a_formula_that_misses_is_shown_at_the_epsilon_that_was_asked(record: dict[str, Any]) -> None:
    paper = TASK.plan("paper")
    right = TASK.plan("local").sigma_effective
    found = row(record, "paper")
    assert found["epsilon"] == pytest.approx(paper.epsilon())
    assert found["mu"] == pytest.approx(paper.mu)
    assert found["epsilon"] > 8
    player = Player(SCHEMES["paper"], TASK, Links())
    played = player.scheme.noise(12) / 12**2
    clean = Setting(TASK, schemes=("paper",), rounds_played=1, link_failure=0.0)
    shown = row(compare.compare(clean), "paper")["noise"]
    assert shown == pytest.approx(played * (right / paper.sigma_effective) ** 2, rel=1e-6)


def test_faults_are_the_same_for_every_scheme_and_both_kinds_of_links() -> None:
    setting = dataclasses.replace(SETTING, dropout=0.3)
    for number in range(5):
        one, four = (setting.faults(number, "relayed", stages) for stages in (1, 4))
        direct = setting.faults(number, "direct", 4)
        assert one.down == four.down == direct.down
        lost = [frozenset().union(*faults.lost.values()) for faults in (one, four, direct)]
        assert lost[0] == lost[1] == lost[2]
        assert not one.cut
    assert len({setting.faults(k, "direct", 4).cut for k in range(5)}) == 5
    many = [setting.faults(k, "direct", 4) for k in range(300)]
    assert np.mean([len(f.down) for f in many]) == pytest.approx(12 * 0.08, rel=0.2)
    assert np.mean([len(f.lost[2]) for f in many]) == pytest.approx(12 * 0.3 / 4, rel=0.2)


def test_failures_are_counted_by_stage_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "fragile", Fragile)
    setting = dataclasses.replace(SETTING, schemes=("fragile",), rounds_played=12)
    found = row(compare.compare(setting), "fragile")
    missing = [len(setting.faults(k, "relayed", 1).down) for k in range(12)]
    assert found["completed"] == missing.count(0)
    counted = {failure["why"]: failure["count"] for failure in found["failures"]}
    assert counted == {f"{12 - n} clients, 12 needed": missing.count(n) for n in set(missing) - {0}}
    assert {failure["stage"] for failure in found["failures"]} == {"upload"}


def test_only_schemes_whose_clients_talk_have_a_row_for_each_kind_of_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slow, "each", 0.0)
    monkeypatch.setitem(SCHEMES, "slow", Slow)
    found = compare.compare(dataclasses.replace(SETTING, schemes=("plain", "slow"), rounds_played=2))["rows"]
    assert [(one["scheme"], one["links"]) for one in found] == [
        ("plain", "any"),
        ("slow", "relayed"),
        ("slow", "direct"),
    ]
    assert found[1]["peer"] == 0 < found[2]["peer"]


@pytest.mark.parametrize("name", [name for name, scheme in SCHEMES.items() if issubclass(scheme, Smpc)])
def test_what_cannot_be_had_says_why_and_has_no_figures(name: str) -> None:
    tight = Task(clients=6, colluders=3, stragglers=3, dimension=50)
    (found,) = compare.compare(Setting(tight, schemes=(name,), rounds_played=1))["rows"]
    assert re.search("smpc needs clients > colluders [+] stragglers|groups must leave more", found["impossible"])
    assert "up" not in found


def test_a_line_is_extended_and_marked() -> None:
    small = Cost(100, 3, 10.0, 5.0, 0.0, 1.0, 2.0, 3.0, 4.0)
    large = Cost(200, 3, 20.0, 5.0, 0.0, 1.5, 1.0, 4.0, 6.0)
    there = small.towards(large, 1200)
    assert (there.up, there.down, there.client, there.modelled, there.wall) == (120.0, 5.0, 6.5, 14.0, 26.0)
    assert there.server == 1.0  # it fell, which is noise: it stays
    assert (there.dimension, there.extrapolated, large.extrapolated) == (1200, True, False)


def test_a_slow_scheme_is_played_short_and_its_costs_lie_on_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "slow", Slow)
    honest = Player._round
    monkeypatch.setattr(Player, "_round", lambda self, faults: _as_slow_as_it_says(honest(self, faults)))
    task = dataclasses.replace(TASK, dimension=100_000)
    player, costs = climb(Slow, task, Links(), seconds=8.0, rounds=4)
    assert 512 <= player.task.dimension < 1500  # 1 + d/1000 seconds, four times
    assert [cost.dimension for cost in costs] == sorted(cost.dimension for cost in costs)
    setting = Setting(task, schemes=("slow",), peers=("relayed",), rounds_played=4, link_failure=0.0, seconds=8.0)
    (found,) = compare.compare(setting)["rows"]
    assert not found["measured"]
    assert found["dimension_played"] < task.dimension
    assert found["server"] == pytest.approx(1 + 100_000 / 1000, rel=0.01)
    assert found["up"] == pytest.approx(4 * 100_000 + 100_000 / 12, rel=0.01)
    full = compare.compare(dataclasses.replace(setting, seconds=1000.0))["rows"][0]
    assert (full["measured"], full["dimension_played"]) == (True, 100_000)


def test_a_line_is_not_drawn_through_vectors_that_are_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "slow", Slow)
    monkeypatch.setattr(Slow, "each", 0.0)
    honest, played = Player._round, []

    def noted(player: Player, faults: Any) -> Any:
        played.append(player.task.dimension)
        return _as_slow_as_it_says(honest(player, faults))

    monkeypatch.setattr(Player, "_round", noted)
    task = dataclasses.replace(TASK, dimension=100_000)
    setting = Setting(task, schemes=("slow",), peers=("relayed",), rounds_played=4, link_failure=0.0, seconds=2.0)
    (found,) = compare.compare(setting)["rows"]
    assert (found["dimension_played"], found["measured"]) == (128, False)  # a second each, whatever the size
    assert played[-2:] == [1024, 4096]


def _as_slow_as_it_says(played: Any) -> Any:
    return dataclasses.replace(played, cost=dataclasses.replace(played.cost, wall=played.cost.server))


def test_a_spent_budget_begins_a_new_training() -> None:
    class Once(Plain):
        def set_up(self, net: Any) -> None:  # noqa: ARG002
            self.left = 2

        def round(self, updates: Any, net: Any) -> Any:
            if self.left == 0:
                raise BudgetError("spent")
            self.left -= 1
            return super().round(updates, net)

    player = Player(Once, TASK, Links())
    assert all(player.round().result is not None for _ in range(5))
    assert player.restarts == 2


def test_updates_are_the_same_for_every_scheme_and_inside_the_clip() -> None:
    vectors = [Player(SCHEMES[name], TASK, Links(), seed=3)._vectors for name in ("plain", "local")]
    assert np.array_equal(vectors[0], vectors[1])
    assert np.all(np.linalg.norm(vectors[0].astype(np.float64), axis=1) <= TASK.clip)
    huge = dataclasses.replace(TASK, dimension=20_000_000)
    assert Player(SCHEMES["plain"], huge, Links())._vectors.shape == (3, 20_000_000)


def test_what_failed_rounds_cost_is_spent_on_those_that_came_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "fragile", Fragile)
    setting = dataclasses.replace(
        SETTING, schemes=("plain", "fragile"), rounds_played=12, link_failure=0.0, dropout=0.08
    )
    whole, fragile = compare.compare(setting)["rows"]
    assert whole["spent"] == {"client": whole["client"], "traffic": whole["up"]}
    sent = [4 * 1500 * (12 - len(setting.faults(k, "relayed", 1).lost[0])) / 12 for k in range(12)]
    assert fragile["completed"] == sent.count(4 * 1500) < 8
    assert fragile["spent"]["traffic"] == pytest.approx(sum(sent) / fragile["completed"])
    assert fragile["spent"]["client"] > 1.2 * fragile["client"]
    none = compare.compare(dataclasses.replace(setting, schemes=("fragile",), link_failure=1.0))["rows"][0]
    assert none["spent"] is None


def test_rows_say_with_how_many_peers_a_client_shares_masks(record: dict[str, Any]) -> None:
    assert row(record, "plain")["degree"] is None
    assert row(record, "exact")["degree"] == 11
    setting = dataclasses.replace(SETTING, schemes=("exact-sparse", "secagg+"), peers=("relayed",), rounds_played=1)
    assert [one["degree"] for one in compare.compare(setting)["rows"]] == [6, SecAggPlus(TASK).degree]


def test_an_interruption_keeps_the_rows_so_far_and_says_so() -> None:
    def told(title: str) -> None:
        if title == SCHEMES["exact"].about.title:
            raise KeyboardInterrupt

    found = compare.compare(dataclasses.replace(SETTING, rounds_played=1), told)
    assert [one["scheme"] for one in found["rows"]] == ["plain", "local"]
    assert found["stopped"]
    assert not compare.compare(dataclasses.replace(SETTING, schemes=("plain",), rounds_played=1))["stopped"]
    with pytest.raises(KeyboardInterrupt):
        compare.compare(dataclasses.replace(SETTING, schemes=("exact",)), told)


def test_local_dp_by_the_papers_formula_has_its_sigma_and_true_epsilon() -> None:
    task = Task(clients=12, colluders=2, stragglers=2, dimension=10, epsilon=3.0, delta=1e-5, rounds=150)
    scheme = LocalPaper(task)
    assert scheme.sigma == pytest.approx(paper_sigma(0.0, 1, 3.0, 1e-5) * 150**0.25)
    once = LocalPaper(dataclasses.replace(task, rounds=1))
    assert once.sigma == pytest.approx(math.sqrt(2 * math.log(2 / 1e-5)) / 3)
    assert scheme.epsilon() == pytest.approx(gaussian.epsilon(math.sqrt(150) / scheme.sigma, 1e-5))
    assert scheme.epsilon() > 10
    assert SCHEMES["local"](task).epsilon() == 3.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"schemes": ()}, "schemes must name at least one"),
        ({"schemes": ("plain", "magic")}, "schemes must be one of plain"),
        ({"schemes": ("plain", "plain")}, "schemes must differ"),
        ({"dropout": 1.5}, r"dropout must be in \[0, 1\]"),
        ({"link_failure": -0.1}, "link_failure must be"),
        ({"rounds_played": 0}, "rounds_played must be"),
        ({"seconds": 0.0}, "seconds must be > 0"),
        ({"cell_seconds": 0.0}, "cell_seconds must be > 0"),
    ],
)
def test_bad_settings_are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        dataclasses.replace(SETTING, **changed)


def test_a_clean_round_gives_the_costs_where_none_came_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "fragile", Fragile)
    setting = dataclasses.replace(SETTING, schemes=("fragile",), link_failure=1.0, rounds_played=3)
    found = row(compare.compare(setting), "fragile")
    assert (found["completed"], found["clean"], found["noise_measured"]) == (0, True, None)
    assert found["up"] == 4 * 1500
    assert Faults().down == frozenset()
