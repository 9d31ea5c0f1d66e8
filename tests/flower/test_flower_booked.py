"""What the next run books of one that ended in mid-round: the rounds that a node has answered, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mpmath
import pytest

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.planning import Plan
from lightdp.protocol import Server
from support.flower_talk import RUN, Talk, a_plan, an_app, record_of, refused

if TYPE_CHECKING:
    from flwr.app import Message

NEXT = b"the run after it"
STATES = json.loads(
    (Path(__file__).parents[1] / "vectors/states.json").read_text()
)  # of the version before federations


def node_of(talk: Talk, folder: Path, at: int) -> Path:
    path = folder / f"{at}.json"
    talk.grid.nodes[at].config |= {
        "lightdp-state": str(path), "lightdp-total-epsilon": 100.0, "lightdp-total-delta": 1e-5,
    }  # fmt: skip
    return path


def booked(talk: Talk, at: int, path: Path) -> float:
    """The μ² that a node has booked once it has enrolled for the next run."""
    assert talk.key(at, run=NEXT).has_content()
    return float(record_of(path)["before"])


def answer(talk: Talk, at: int) -> Message:
    reply = talk.grid.handle(at, talk.start())
    assert talk.server.receive(reply.content.array_records["arrays"]["lightdp"].numpy().tobytes())
    return reply


def rounds_of(plan: Plan, me: int, whole: int, *, open_round: bool) -> float:
    """μ² of `whole` rounds that all answered, and at its worst of one more whose set nobody has announced."""
    odometer = Odometer(plan, [me])
    for _ in range(whole):
        if plan.grace:
            odometer.open(ClientSet.of(3, range(3)))
        odometer.record(range(3))
    return float(odometer.counted(ahead=open_round, worst=True).mu()[0]) ** 2


@pytest.mark.parametrize("calibration", ["exact", "repair"])
@pytest.mark.parametrize("grace", [0, 1])
def test_a_server_that_is_killed_in_mid_round_costs_each_node_the_rounds_it_answered(
    calibration: Any, grace: int, tmp_path: Path
) -> None:
    talk = Talk(plan=a_plan(calibration=calibration, rounds=40, grace=grace))
    paths = [node_of(talk, tmp_path, at) for at in range(3)]
    talk.enrol()
    for _ in range(3):
        for at in range(3):
            answer(talk, at)
        talk.server.close()
    answer(talk, 0)  # and here the server is killed; node 1 was not asked
    if grace == 0:
        for at, whole in ((0, 3), (1, 2)):  # the last set that each of them has heard of is the one before its last
            exact = rounds_of(talk.plan, at, whole, open_round=True)
            assert booked(talk, at, paths[at]) == pytest.approx(exact, rel=1e-6)
            assert booked(talk, at, paths[at]) >= exact
    else:
        more, less = booked(talk, 0, paths[0]), booked(talk, 1, paths[1])
        assert rounds_of(talk.plan, 0, 3, open_round=False) < less < more < (gaussian.mu(8.0, 1e-5)) ** 2 / 3


def test_a_run_that_no_round_of_was_answered_costs_nothing(tmp_path: Path) -> None:
    talk = Talk()
    path = node_of(talk, tmp_path, 0)
    talk.enrol()
    assert booked(talk, 0, path) == 0.0


@pytest.mark.parametrize("how", ["interrupted", "exited"])
def test_a_node_that_ends_after_the_charge_and_before_the_upload_has_spent_the_round(how: str, tmp_path: Path) -> None:
    def train(_: Any) -> Any:
        raise KeyboardInterrupt if how == "interrupted" else SystemExit

    talk = Talk(an_app(train), a_plan(calibration="exact"))
    path = node_of(talk, tmp_path, 0)
    talk.enrol()
    message = talk.start()
    if how == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            talk.grid.handle(0, message)
    else:
        talk.grid.handle(0, message, keep=False)
    talk.grid.restart(0)
    assert refused(talk.grid.handle(0, message), "round 0 was answered")
    with mpmath.workdps(40):
        one = mpmath.mpf(gaussian.mu(8.0, 1e-5)) ** 2 / 8
    assert booked(talk, 0, path) == pytest.approx(float(one), rel=1e-6)


def test_a_closing_round_costs_nothing(tmp_path: Path) -> None:
    talk = Talk(plan=a_plan(calibration="repair", rounds=40))
    path = node_of(talk, tmp_path, 0)
    talk.enrol()
    for at in range(3):
        answer(talk, at)
    talk.server.close()
    start, roster = talk.server.announce(since=0, closing=True), talk.server.roster()
    assert talk.grid.handle(0, talk.order(run=RUN, start=start, roster=roster, closing=True)).has_content()
    exact = rounds_of(talk.plan, 0, 1, open_round=False)
    assert booked(talk, 0, path) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("kind", STATES)
def test_a_state_of_a_version_without_federations_counts_what_was_sent(kind: str, tmp_path: Path) -> None:
    record = dict(STATES[kind])
    exact = record.pop("expected")  # what that version books itself
    talk = Talk(plan=Plan.from_json(record["plan"]))
    path = node_of(talk, tmp_path, 0)
    path.touch(0o600)
    path.write_text(json.dumps(record))
    old = talk.order(run=bytes.fromhex(record["run"]), start=b"", closing=False)
    assert refused(talk.grid.handle(0, old), "the state of this run is of an earlier version of lightdp")
    assert booked(talk, 0, path) == pytest.approx(exact, rel=1e-9)


def test_an_older_state_of_other_noise_counts_as_the_whole_plan(tmp_path: Path) -> None:
    record = dict(STATES["exact"])
    client = json.loads(record["client"])
    record["client"] = json.dumps(client | {"agreement": bytes(32).hex()})  # that version chose other noise
    talk = Talk(plan=Plan.from_json(record["plan"]))
    path = node_of(talk, tmp_path, 0)
    path.touch(0o600)
    path.write_text(json.dumps(record))
    assert booked(talk, 0, path) == pytest.approx(gaussian.mu(8.0, 1e-5) ** 2, rel=1e-6)


def test_two_runs_that_were_killed_add_up(tmp_path: Path) -> None:
    talk = Talk(plan=a_plan(calibration="exact"))
    path = node_of(talk, tmp_path, 0)
    one = gaussian.mu(8.0, 1e-5) ** 2 / 8
    for count, run in enumerate((b"run number one..", b"run number two..")):
        talk.server = Server(talk.plan, length=4, run=run)
        for at in range(3):
            reply = talk.key(at, run=run)
            talk.server.enrol(bytes(reply.content.config_records["lightdp"]["enrolment"]))  # type: ignore[arg-type]
        assert float(record_of(path)["before"]) == pytest.approx(count * one, rel=1e-6)
        talk.server.roster()
        assert talk.grid.handle(0, talk.start(run=run)).has_content()
        talk.grid.restart(0)
    assert booked(talk, 0, path) == pytest.approx(2 * one, rel=1e-6)
