"""What a node has spent over all its runs: one ledger of μ², with an (ε, δ) of its own."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import mpmath
import numpy as np
import pytest
from flwr.app import Context, RecordDict

import lightdp
from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.errors import BudgetError
from lightdp.federation import Kept
from lightdp.flower import _total, _vault
from lightdp.flower._plans import planned
from lightdp.flower._settings import Settings
from lightdp.planning import Failures
from lightdp.protocol import Server
from lightdp.protocol.host import Host
from support.federated_nodes import Memory
from support.flower_talk import Talk, a_plan, a_record_app, enrolment, record_of, records_of, refused

if TYPE_CHECKING:
    from pathlib import Path

    from support.command_line import Run


def limited(talk: Talk, folder: Path, epsilon: float, delta: float) -> Talk:
    talk.grid.nodes[0].config |= {
        "lightdp-state": str(folder / "s.json"), "lightdp-total-epsilon": epsilon, "lightdp-total-delta": delta,
    }  # fmt: skip
    return talk


def a_run(talk: Talk, run: bytes, rounds: int) -> bool:
    """Whether node 0 enrols; then it answers so many rounds, which are all used, and starts again."""
    if talk.key(0, run=run).has_error():
        return False
    talk.server = Server(talk.plan, length=4, run=run)
    for at in range(3):
        talk.server.enrol(enrolment(talk.key(at, run=run)))
    talk.server.roster()
    for _ in range(rounds):
        for at in range(3):
            reply = talk.grid.handle(at, talk.start(run=run))
            talk.server.receive(reply.content.array_records["arrays"]["lightdp"].numpy().tobytes())
        talk.server.close()
    talk.grid.restart(0)
    return True


def delta_of(epsilon: float, mu: Any) -> Any:
    """(E5) in mpmath."""
    return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def mu_of(epsilon: float, delta: float) -> Any:
    """The largest μ with (ε, δ), by bisection in mpmath."""
    low, high = mpmath.mpf(0), mpmath.mpf(100)
    for _ in range(120):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(epsilon, middle) <= delta else (low, middle)
    return low


def test_of_80_small_runs_so_many_are_let_in_as_the_sum_of_squares_allows(tmp_path: Path) -> None:
    plan = a_plan(epsilon=0.1, delta=0.4, rounds=1, calibration="exact")
    talk = limited(Talk(plan=plan), tmp_path, 20.0, 1e-5)
    admitted = 0
    while admitted < 80 and a_run(talk, b"run %012d" % admitted, 1):
        admitted += 1
    with mpmath.workdps(40):
        square = mu_of(0.1, 0.4) ** 2
        runs = max(n for n in range(1, 81) if delta_of(20.0, mpmath.sqrt(n * square)) <= 1e-5)
    assert admitted == runs
    assert 3 < runs < 20  # ε of 0.1 each would let in all 80, whose true ε at 1e-5 is 94
    assert refused(talk.key(0, run=b"one more of them"), "lightdp/budget: with this plan all runs of this node could")


def test_a_run_counts_what_was_sent_in_it_and_not_its_whole_plan(tmp_path: Path) -> None:
    talk = limited(Talk(plan=a_plan(calibration="exact")), tmp_path, 8.5, 1e-5)  # of 8 rounds, ε = 8
    assert a_run(talk, b"run number one..", 0)
    assert a_run(talk, b"run number two..", 0)  # nothing was sent, nothing is spent
    assert ledger(tmp_path) == 0
    assert a_run(talk, b"run number three", 1)  # is cut off after one of eight rounds
    assert refused(talk.key(0, run=b"run number four."), "could cost epsilon=8.59")
    talk.grid.nodes[0].config["lightdp-total-epsilon"] = 8.7
    assert a_run(talk, b"run number four.", 0)
    with mpmath.workdps(40):
        exact = mu_of(8.0, 1e-5) ** 2 / 8
    assert ledger(tmp_path) == pytest.approx(float(exact), rel=1e-6)
    assert ledger(tmp_path) >= exact


def test_a_run_with_repair_counts_what_its_odometer_says_at_worst(tmp_path: Path) -> None:
    talk = limited(Talk(plan=a_plan(calibration="repair", rounds=40)), tmp_path, 100.0, 1e-5)
    assert a_run(talk, b"run number one..", 5)
    odometer = Odometer(talk.plan, [0])
    for _ in range(4):
        odometer.record(range(3))
    exact = odometer.counted(ahead=True, worst=True).mu()[0] ** 2  # nobody has told it who was used in the last round
    assert a_run(talk, b"run number two..", 0)
    assert ledger(tmp_path) == pytest.approx(exact, rel=1e-6)
    assert exact <= ledger(tmp_path) < 0.5 * _total.at_worst(talk.plan)
    plain = Odometer(talk.plan, [0])
    for _ in range(5):
        plain.record(range(3))
    assert ledger(tmp_path) > plain.mu()[0] ** 2


@pytest.mark.parametrize("changed", [{}, {"calibration": "repair"}, {"unit": "record", "sampling_rate": 0.1}])
def test_the_first_run_may_cost_all_of_the_total_and_no_second_one_fits(changed: Any, tmp_path: Path) -> None:
    plan = a_plan(**changed)
    own = Settings(name="a", total_epsilon=plan.budget, total_delta=plan.delta, state=tmp_path)
    _total.check(own, plan, 0.0)
    _total.check(own, plan, 0.0, sent=9.0)
    for tighter in (
        replace(own, total_epsilon=plan.budget * (1 - 1e-12)),
        replace(own, total_delta=plan.delta * (1 - 1e-12)),
    ):
        with pytest.raises(BudgetError, match="with this plan all runs of this node could cost"):
            _total.check(tighter, plan, 0.0)
    for earlier in (1e-9, 1.0):
        with pytest.raises(BudgetError):
            _total.check(own, plan, earlier)
    roomy = replace(own, total_epsilon=gaussian.epsilon(1.0, plan.delta) + plan.budget, total_delta=2 * plan.delta)
    _total.check(roomy, plan, 1.0)  # (ε, δ) of earlier runs and of this one add up
    if plan.sampling_rate < 1:  # without amplification, the sum of μ² is larger
        with pytest.raises(BudgetError):
            _total.check(replace(roomy, total_epsilon=roomy.total_epsilon - 1e-6), plan, 1.0)  # type: ignore[operator]


def test_a_run_that_is_asked_for_twice_is_counted_once_and_one_that_returns_again(tmp_path: Path) -> None:
    talk = limited(Talk(plan=a_plan(calibration="exact", rounds=1)), tmp_path, 100.0, 1e-5)
    one = _total.at_worst(talk.plan)
    for run, spent in ((b"run number one..", 0), (b"run number two..", 1), (b"run number one..", 2)):
        assert a_run(talk, run, 1)
        assert talk.key(0, run=run).has_content()
        assert ledger(tmp_path) == pytest.approx(spent * one, rel=1e-6)


def test_a_node_that_has_spent_its_total_is_still_in_its_last_run(tmp_path: Path) -> None:
    talk = limited(Talk(plan=a_plan(calibration="exact", rounds=2)), tmp_path, 8.0, 1e-5)
    assert a_run(talk, b"run number one..", 1)
    assert talk.key(0, run=b"run number one..").has_content()
    assert talk.grid.handle(0, talk.start(run=b"run number one..")).has_content()
    assert refused(talk.key(0, run=b"run number two.."), "above lightdp-total-epsilon=8")


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"unit": "record"}, {"unit": "client"}),
        ({"adjacency": "add-remove"}, {"adjacency": "replace"}),
    ],
)
def test_a_total_is_for_one_unit_and_adjacency(first: Any, then: Any, tmp_path: Path) -> None:
    talk = limited(Talk(a_record_app(lambda w: w[None])), tmp_path, 100.0, 1e-5).sets(records_of(1.0))
    for changed in (first, then):
        talk.plan = a_plan(**changed)
        talk.sets({f"lightdp-{key}": value for key, value in changed.items()} | {"lightdp-unit": talk.plan.unit})
        if changed == first:
            assert a_run(talk, b"run number one..", 1)
    why = f"the state counts unit '{a_plan(**first).unit}' and adjacency 'add-remove'"
    assert refused(talk.key(0, run=b"run number two.."), why)
    del talk.grid.nodes[0].config["lightdp-total-epsilon"], talk.grid.nodes[0].config["lightdp-total-delta"]
    assert talk.key(0, run=b"run number two..").has_content()


def test_a_total_looks_at_all_runs_that_the_state_counts_and_not_at_the_last_alone(tmp_path: Path) -> None:
    talk = limited(Talk(), tmp_path, 100.0, 1e-5)
    for adjacency, run in (("add-remove", b"run number one.."), ("replace", b"run number two..")):
        talk.plan = a_plan(adjacency=adjacency)
        assert a_run(talk, run, 1)
    node = talk.grid.nodes[0]
    node.config["lightdp-adjacency"] = "replace"
    why = "the state counts unit 'client' and adjacency 'add-remove'"
    assert refused(talk.grid.handle(0, talk.start(run=b"run number two..")), why)
    assert refused(talk.key(0, run=b"run number three"), why)
    del node.config["lightdp-total-epsilon"], node.config["lightdp-total-delta"]
    assert talk.key(0, run=b"run number three").has_content()


def test_a_state_that_is_lost_is_not_begun_anew_while_its_number_is_kept(tmp_path: Path) -> None:
    talk = limited(Talk(), tmp_path, 9.0, 1e-5)
    talk.grid.nodes[0].config["lightdp-anchor"] = str(tmp_path / "anchor")
    assert a_run(talk, b"run number one..", 8)
    (tmp_path / "s.json").unlink()
    for left in ("s.json.serial", "anchor"):
        assert refused(talk.key(0, run=b"run number two.."), "is lost, and with it what this node has spent")
        (tmp_path / left).unlink()
    assert talk.key(0, run=b"run number two..").has_content()  # the operator has given it up


def test_a_total_that_is_lowered_in_mid_run_holds_at_once(tmp_path: Path) -> None:
    talk = limited(Talk(), tmp_path, 20.0, 1e-5)
    talk.enrol()
    talk.grid.nodes[0].config["lightdp-total-epsilon"] = 7.9
    assert refused(talk.grid.handle(0, talk.start()), "above lightdp-total-epsilon=7.9")


@pytest.mark.parametrize("calibration", ["exact", "repair"])
def test_a_whole_plan_costs_the_mu_of_its_budget(calibration: Any) -> None:
    plan = a_plan(calibration=calibration, epsilon=3.0)
    with mpmath.workdps(40):
        exact = mu_of(3.0, 1e-5) ** 2
    assert exact <= _total.at_worst(plan) <= exact * (1 + 1e-8)


def test_sampled_batches_count_without_amplification_and_each_round_beyond_the_plans_too() -> None:
    plan = a_plan(unit="record", sampling_rate=0.1, rounds=10)
    each = (plan.clip / plan.sigma_effective) ** 2
    assert _total.at_worst(plan, 3 * each) == pytest.approx(10 * each, rel=1e-6)
    assert _total.at_worst(plan, 15 * each) == pytest.approx(15 * each, rel=1e-6)
    assert _total.at_worst(plan) > float(mu_of(plan.budget, plan.delta)) ** 2  # sampling hides more


def test_the_upload_that_is_about_to_be_made_counts_in_the_total_and_a_closing_round_does_not() -> None:
    asked: Any = {"clients": 3, "colluders": 0, "stragglers": 0, "rounds": 2, "epsilon": 8.0, "delta": 1e-5}
    plan = lightdp.plan(**asked, unit="record", sampling_rate=0.5, calibration="exact")
    federation = lightdp.Federation(plan, length=4, run=bytes(16))
    stores = [Memory() for _ in range(3)]
    members = [
        lightdp.Member.new(plan, length=4, run=bytes(16), name=f"m{i}", store=store) for i, store in enumerate(stores)
    ]
    for member in members:
        federation.enrol(member.enrol())
    federation.form()
    table = federation.rosters[0]
    all_of_it = gaussian.epsilon(math.sqrt(2) * plan.sensitivity / plan.scale, plan.delta) * (1 + 1e-6)
    settings: Any = SimpleNamespace(total_epsilon=all_of_it, total_delta=plan.delta)
    vault: Any = SimpleNamespace(load=stores[0].load, record={"before": 1e-15, "length": 4})
    for _ in range(2):
        for member in members:
            member.join(table.server.roster())
            if member is members[0]:
                _total.check_round(settings, vault, plan, 0, closing=False)
            federation.receive(member.begin(table.server.announce(since=0)).upload(np.zeros(4)))
        federation.close(0)
    _total.check_round(settings, vault, plan, 0, closing=True)
    with pytest.raises(BudgetError):
        _total.check_round(settings, vault, plan, 0, closing=False)


def test_a_total_needs_a_state_that_no_server_can_lead_astray(tmp_path: Path) -> None:
    talk = Talk()
    node = talk.grid.nodes[0]
    node.config |= {"lightdp-total-epsilon": 20.0, "lightdp-total-delta": 1e-5}
    node.config["lightdp-state"] = str(tmp_path)  # a file for each node id, which the server gives
    assert refused(talk.key(0), "a folder with lightdp-name")
    node.config["lightdp-name"] = "node-7"
    assert talk.key(0).has_content()
    assert [path.name for path in tmp_path.glob("*.json")] == ["node-7.json"]


def test_a_state_that_can_no_longer_be_restored_counts_as_its_whole_plan(tmp_path: Path) -> None:
    talk = limited(Talk(plan=a_plan(calibration="exact")), tmp_path, 100.0, 1e-5)
    assert a_run(talk, b"run number one..", 1)
    path = tmp_path / "s.json"
    path.write_text(json.dumps(record_of(path) | {"client": "{}"}))
    talk.grid.restart(0)
    assert talk.key(0, run=b"run number two..").has_content()
    assert ledger(tmp_path) == pytest.approx(_total.at_worst(talk.plan))
    assert math.isclose(_total.at_worst(planned(talk.plan.to_json())), _total.at_worst(talk.plan))


@pytest.mark.parametrize("sampled", [False, True])
def test_a_state_of_a_version_without_grace_counts_as_its_whole_plan(sampled: bool, tmp_path: Path) -> None:
    rate = {"unit": "record", "sampling_rate": 0.5} if sampled else {}
    talk = limited(Talk(a_record_app(lambda w: w[None]), plan=a_plan(**rate)), tmp_path, 100.0, 1e-5)
    talk.sets(records_of(1.0) | {"lightdp-record-rate": 0.5} if sampled else {})
    assert a_run(talk, b"run number one..", 1)
    talk.grid.restart(0)
    path = tmp_path / "s.json"
    record = record_of(path)
    plan = json.dumps(json.loads(record["plan"]) | {"late": "seen"}, sort_keys=True)
    path.write_text(json.dumps(record | {"client": '{"version": 2}', "plan": plan}))
    reply = talk.key(0, run=b"run number two..")
    if sampled:
        assert refused(reply, "lightdp/protocol: the state counts a run with sampled batches of an earlier version")
    else:
        assert reply.has_content()
        assert ledger(tmp_path) == pytest.approx(_total.at_worst(talk.plan))


def test_a_state_that_was_moved_to_another_machine_counts_what_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = limited(Talk(plan=a_plan(calibration="exact")), tmp_path, 100.0, 1e-5)
    assert a_run(talk, b"run number one..", 1)
    monkeypatch.setattr(Host, "here", lambda: Host("another machine", None))
    assert talk.key(0, run=b"run number two..").has_content()
    assert ledger(tmp_path) == pytest.approx(_total.at_worst(talk.plan) / 8, rel=1e-6)


def ledger(folder: Path) -> float:
    return float(record_of(folder / "s.json")["before"])


def times(runs: int, one: Failures) -> Any:
    """What so many runs may fail by, as a state has it."""
    return pytest.approx([runs * each for each in (one.fixed, one.tails, one.shift)], rel=1e-9, abs=0)


DRAWN: Any = {"clients": 3, "colluders": 0, "calibration": "repair", "masks": "drawn", "rounds": 4}


def test_what_drawn_masks_may_fail_by_is_kept_of_runs_in_which_something_was_sent(tmp_path: Path) -> None:
    plan = a_plan(**DRAWN)
    one = plan.masks.fails(4)
    assert one.fixed == pytest.approx(4.5e-4 * 1e-5, rel=1e-9)
    talk = limited(Talk(plan=plan), tmp_path, 100.0, 1e-5)
    for number, (rounds, before) in enumerate(((0, 0), (1, 0), (2, 1), (1, 2))):
        assert a_run(talk, b"run number %05d" % number, rounds)
        assert record_of(tmp_path / "s.json")["failed"] == times(before, one)
    talk.plan = a_plan(calibration="exact")  # has other masks, and counts the earlier ones
    assert a_run(talk, b"another run.....", 1)
    assert record_of(tmp_path / "s.json")["failed"] == times(3, one)


def test_a_state_is_shown_with_what_a_node_counts_in_its_next_run(tmp_path: Path, run: Run) -> None:
    """Which is more than Gaussian noise of the same μ would cost. `lightdp audit` counts by the same failures."""
    talk, path = limited(Talk(plan=a_plan(**DRAWN)), tmp_path, 100.0, 1e-5), tmp_path / "s.json"
    for number, rounds in enumerate((1, 2, 0)):  # in the last one earlier runs are all that counts
        assert a_run(talk, b"run number %05d" % number, rounds)
        vault = _vault.Vault(Context(1, talk.grid.nodes[0].id, {}, RecordDict(), {}), path)
        square, fails = _total.before(vault, "another")
        enforced = fails.epsilon(square**0.5, 1e-5)
        assert enforced > gaussian.epsilon(square**0.5, 1e-5)
        kept, options = Kept.read(path), ("--json", "--total-epsilon=100", "--total-delta=1e-5")
        sums = json.loads(run("state", "show", path, *options).out)["all_runs"]
        assert kept.fails == fails
        assert sums["spent"]["epsilon"] >= enforced
        assert sums["spent"]["epsilon"] == fails.epsilon(sums["spent"]["mu"], 1e-5)
        assert (sums["earlier"]["epsilon"] > gaussian.epsilon(sums["earlier"]["mu"], 1e-5)) == (number > 0)
        left = kept.left_of(100.0, 1e-5)
        assert sums["left"]["mu"] == left
        exact = [fails.delta(100.0, math.hypot(more * left, sums["spent"]["mu"])) for more in (1, 1.001)]
        assert exact[0] <= 1e-5 * (1 + 1e-6) < exact[1]
        audited = json.loads(run("audit", "--client", path, "--json").out)["all_runs"]
        assert audited["epsilon"] == fails.epsilon(audited["mu"], 1e-5) >= enforced


def test_a_delta_of_which_failures_leave_nothing_is_shown_as_no_epsilon(tmp_path: Path, run: Run) -> None:
    talk, path = limited(Talk(plan=a_plan(**DRAWN)), tmp_path, 100.0, 1e-5), tmp_path / "s.json"
    assert a_run(talk, b"run number one..", 1)
    options = ("--total-epsilon=100", "--total-delta=1e-12")
    assert json.loads(run("state", "show", path, "--json", *options).out)["all_runs"]["spent"]["epsilon"] is None
    page = run("state", "show", path, *options)
    assert (page.code, page.err) == (0, "")
    assert " inf" in page.out


def test_records_of_versions_before_drawn_masks_have_none_that_fail(tmp_path: Path) -> None:
    talk, path = limited(Talk(), tmp_path, 100.0, 1e-5), tmp_path / "s.json"
    assert a_run(talk, b"run number one..", 1)
    record = record_of(path)
    del record["failed"], record["node"]
    path.write_text(json.dumps(record))
    talk.grid.restart(0)
    assert a_run(talk, b"run number two..", 1)
    assert record_of(path)["failed"] == [0, 0, 0]
    path.write_text(json.dumps(record_of(path) | {"failed": [1e-9]}))
    talk.grid.restart(0)
    assert refused(talk.key(0, run=b"run number three"), "failed must be a list of three numbers")


def test_what_drawn_masks_may_fail_by_is_taken_from_the_total_delta(tmp_path: Path) -> None:
    plan = a_plan(**DRAWN)
    own = Settings(name="a", total_epsilon=12.0, total_delta=1e-5, state=tmp_path)
    fails = plan.masks.fails(10**6)
    with mpmath.workdps(40):
        mu = mpmath.sqrt(mpmath.mpf(1) + _total.at_worst(plan))
        exact, high = mpmath.mpf(2), mpmath.mpf(30)
        for _ in range(60):  # bisection
            middle = (exact + high) / 2
            exact, high = (exact, middle) if delta_of(middle, mu) <= 1e-5 - 2 * fails.fixed else (middle, high)
    for more, ok in ((1e-2, True), (-1e-4, False)):
        limits = replace(own, total_epsilon=float(exact) + more)
        if ok:
            _total.check(limits, plan, 1.0, fails=(fails, fails))
        else:
            with pytest.raises(BudgetError, match="all runs of this node could cost epsilon="):
                _total.check(limits, plan, 1.0, fails=(fails, fails))
    _total.check(replace(own, total_epsilon=1e3), plan, 1.0, fails=(Failures(fixed=6e-6), fails))
    often = Failures(fixed=1.2e-5)
    with pytest.raises(BudgetError, match=r"could cost epsilon=inf at .*, as drawn masks could fail too often"):
        _total.check(replace(own, total_epsilon=1e3), plan, 1.0, fails=(often, fails))
    _total.check(replace(own, total_epsilon=1e3, total_delta=3e-5), plan, 1.0, fails=(often, fails))


def test_failures_that_grow_with_epsilon_bound_a_large_total() -> None:
    """By hand, in mpmath: what is found is a bound, and near the least ε that is one."""
    fails = Failures(fixed=1e-8, tails=1e-14)
    for mu in (0.5, 1.5, 2.5):
        found = fails.epsilon(mu, 1e-5)
        with mpmath.workdps(40):
            here = [
                delta_of(epsilon, mu) + 1e-8 + (1 + mpmath.exp(epsilon)) * 1e-14 for epsilon in (found, 0.98 * found)
            ]
        assert here[0] <= 1e-5 < here[1]
        assert fails.delta(found, mu) <= 1e-5 * (1 + 1e-9)
    assert fails.epsilon(6.0, 1e-5) == math.inf  # at ε = 40, e^ε times 1e-14 are more than 1
    with mpmath.workdps(40):
        least = min(
            delta_of(mpmath.mpf(k) / 10, 6) + 1e-8 + (1 + mpmath.exp(mpmath.mpf(k) / 10)) * 1e-14
            for k in range(200, 400)
        )
    assert fails.delta(50.0, 6.0) == fails.delta(700.0, 6.0) == pytest.approx(float(least), rel=1e-2)
    shifted = Failures(shift=1e-3)
    assert shifted.epsilon(1.0, 1e-5) > gaussian.epsilon(1.0, 1e-5) + 1e-3
    assert shifted.delta(0.0, 1.0) >= gaussian.delta(0.0, 1.0) + 1e-3
