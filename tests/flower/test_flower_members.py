"""The nodes behind members: whose name a node has, who is asked again, and what no node's reply can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg

from lightdp.federation import Federation
from lightdp.flower import _members
from lightdp.flower._members import Members
from lightdp.flower._run import Run
from support.flower_grid import LocalGrid, Node
from support.flower_training import an_app, planned, trained

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.app import Context

RUN = b"a federation: 16"


def a_grid() -> LocalGrid:
    """Five nodes with names of their own, whatever their ids."""
    grid = LocalGrid(an_app(), 5)
    for i, node in enumerate(grid.nodes):
        node.config["lightdp-name"] = f"site-{i}"
    return grid


def a_run(grid: LocalGrid, *, enrolled: int = 5) -> Run:
    """A roster of the nodes that have enrolled."""
    federation = Federation(planned(), length=40, run=RUN, least=3)
    run = Run(federation, grid, {"config": ConfigRecord()})
    run.members.gather(0.01, wanted=5, least=enrolled)
    federation.form(force=True)
    return run


def keys(grid: LocalGrid, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Positions of the nodes that get key messages from now on."""
    asked, deliver = list[int](), grid._deliver

    def noted(at: int, message: Message, fault: Any) -> None:
        if "plan" in message.content.config_records.get("lightdp", {}):
            asked.append(at)
        deliver(at, message, fault)

    monkeypatch.setattr(grid, "_deliver", noted)
    return asked


def lying(grid: LocalGrid, at: int, change: Callable[[Message, Message], Message]) -> None:
    """Let one node send something else than its answer."""
    app = grid.app

    def lies(message: Message, context: Context) -> Message:
        reply = app(message, context)
        return change(message, reply) if context.node_config["partition-id"] == at else reply

    grid.app = lies  # type: ignore[assignment]


# ---- names ----


def test_who_repeats_the_enrolment_of_another_gets_no_name_and_changes_nothing() -> None:
    grid = a_grid()
    run = a_run(grid)
    members, cohort = run.members, run.federation.cohorts.rosters[0]
    before = dict(members.nodes)
    cohort.missed = {"site-0": 2, "site-1": 3}
    grid.faults = {(0, 1): "impostor"}  # sends what node 0 has sent, with its proof
    members.welcome()
    members.welcome()
    assert "WireError('site-0 did not sign this')" in members.refused[1007]
    assert members.nodes == before
    assert cohort.missed == {"site-0": 2, "site-1": 3}


def test_an_enrolment_without_a_proof_is_none() -> None:
    grid = a_grid()

    def without(_: Message, reply: Message) -> Message:
        if "lightdp" in reply.content.config_records:
            del reply.content.config_records["lightdp"]["proof"]
        return reply

    lying(grid, 2, without)
    members = a_run(grid, enrolled=4).members
    assert sorted(members.nodes.values()) == ["site-0", "site-1", "site-3", "site-4"]
    assert "proof" in members.refused[1014]


def test_the_node_that_proves_last_to_be_a_member_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = a_grid()
    run = a_run(grid)
    grid.nodes.append(Node(2000, grid.nodes[0].config))  # its SuperNode came back, and Flower still lists the old id
    run.members.welcome()
    run.members.welcome()
    assert run.members.node("site-0") == 2000
    assert sorted(run.members.nodes) == [1007, 1014, 1021, 1028, 2000]
    asked = keys(grid, monkeypatch)
    run.members.welcome()
    assert asked == []
    message = Message(RecordDict(), 1000, "train")
    message.metadata.__dict__["_message_id"] = "of round 0"
    run._pending["of round 0"] = 1000, 0, 0
    refusal = Error(ErrorCode.MOD_FAILED_PRECONDITION, "lightdp/budget: another round could exceed it")
    run._take([Message(refusal, reply_to=message)])
    assert run.federation.cohorts.rosters[0].left == set()  # nobody's node any more


# ---- who is asked again ----


def test_members_whose_roster_was_closed_while_they_were_away_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = a_grid()
    run = a_run(grid)
    fed, members = run.federation, run.members
    fed.cohorts.rosters[0].missed = {"site-2": 3, "site-3": 3, "site-4": 3}
    members.leave(1028)  # has no budget left
    fed.end(0)
    assert sorted(fed.cohorts.waiting) == ["site-0", "site-1"]
    asked = keys(grid, monkeypatch)
    for _ in range(3):
        members.welcome()
    assert asked == [2, 3]
    assert sorted(fed.cohorts.waiting) == ["site-0", "site-1", "site-2", "site-3"]


def test_members_without_budget_by_the_servers_count_are_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = a_grid()
    run = a_run(grid)
    run.federation.cohorts.rosters[0].missed = dict.fromkeys(("site-2", "site-3"), 3)
    run.federation.end(0)
    run.federation._spent["site-3"] = {1e9: 1}  # type: ignore[assignment]
    asked = keys(grid, monkeypatch)
    run.members.welcome()
    run.members.welcome()
    assert asked == [2]


def test_a_node_that_refused_is_asked_again_after_a_while_or_when_it_reconnects(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    grid = a_grid()
    grid.nodes[4].config["lightdp-max-epsilon"] = 0.5
    members = a_run(grid, enrolled=4).members
    asked = keys(grid, monkeypatch)
    members.welcome()
    assert asked == []
    for online in (False, True):
        grid.nodes[4].online = online
        members.welcome()
    members.welcome()
    assert asked == [4]
    with monkeypatch.context() as patched:
        patched.setattr(_members, "_REFUSED_AGAIN", 0.0)
        members.welcome()
    assert asked == [4, 4]
    members.welcome()
    assert caplog.text.count("not enrolled") == 1  # the reason was the same
    grid.nodes[4].config["lightdp-max-epsilon"] = 1e9
    monkeypatch.setattr(_members, "_REFUSED_AGAIN", 0.0)
    members.welcome()
    members.welcome()
    assert members.nodes[1028] == "site-4"
    assert members.refused == {}


# ---- what a node may send ----


@pytest.mark.parametrize(
    "answered",
    ['{"0": Infinity}', "[" * 60000, "[" * 200000, '{"0": "-5"}', '{"0": 1}', '{"0": "_"}', '{"x": "1"}', "[1]", "", 7],
    ids=lambda each: str(each)[:12],
)
def test_what_a_node_says_that_it_has_answered_may_be_anything(answered: Any, caplog: pytest.LogCaptureFixture) -> None:
    grid = a_grid()

    def change(_: Message, reply: Message) -> Message:
        reply.content.config_records["lightdp"]["answered"] = answered
        return reply

    lying(grid, 4, change)
    heard: list[str] = []
    federation = Federation(planned(), length=40, run=RUN)
    federation.heard = lambda name, answered: heard.append(name)  # type: ignore[method-assign] # noqa: ARG005
    members = Members(federation, grid, {"config": ConfigRecord()})
    members.gather(0.01, wanted=5, least=5)
    assert sorted(heard) == ["site-0", "site-1", "site-2", "site-3"]
    assert caplog.text.count("what node 1028 says that it has answered was left out") == 1


@pytest.mark.parametrize("kind", ["key", "train"])
def test_the_reason_of_a_node_is_one_short_line_of_the_log(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    grid = LocalGrid(an_app(), 6)
    reason = "x\n\x1b[2J2026-01-01 INFO : lightdp: round 3 used 5 of 5 clients\u202e" + 10_000 * "A"

    def change(message: Message, reply: Message) -> Message:
        if ("plan" in message.content.config_records.get("lightdp", {})) != (kind == "key"):
            return reply
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=message)

    lying(grid, 5, change)
    trained(grid, planned(), FedAvg(fraction_evaluate=0.0), num_rounds=1)
    lines = [record.getMessage() for record in caplog.records if "2026-01-01" in record.getMessage()]
    assert len(lines) == 1
    assert r"x\n\x1b[2J2026-01-01 INFO" in lines[0]
    assert lines[0].isprintable()
    assert len(lines[0]) < 500


def test_an_evaluation_that_a_node_spoils_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    grid = LocalGrid(an_app(), 5)

    def change(message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "evaluate":
            return reply
        return Message(RecordDict({"metrics": MetricRecord({"other": 1})}), reply_to=message)

    lying(grid, 3, change)
    _, result = trained(grid, planned(), FedAvg(), num_rounds=2)
    assert list(result.train_metrics_clientapp) == [1, 2]
    assert result.evaluate_metrics_clientapp == {}
    assert "evaluation of round 2 left out: InconsistentMessageReplies" in caplog.text


# ---- why there is no roster, or why one is closed ----


def test_the_reason_counts_those_without_budget() -> None:
    grid = LocalGrid(an_app(), 5)
    run = Run(Federation(planned(clients=3, stragglers=1), length=40, run=RUN), grid, {"config": ConfigRecord()})
    run.members.gather(0.01, wanted=5, least=5)
    first, second, *others = sorted(run.members.nodes)
    for node in (first, second):
        run.members.leave(node)
    run.federation.leave(run.members.nodes[others[0]])
    word, why = run.nobody_left()
    assert (word, why) == (
        "members",
        "too few clients are left for a roster: 2 of at least 3; 2 of 5 clients can take no further round",
    )
    run.members.leave(others[0])
    assert run.nobody_left() == ("budget", "the budget is used up: 3 of 5 clients can take no further round")


def test_a_roster_that_is_closed_says_how_many_have_no_budget_and_how_many_are_away() -> None:
    grid = LocalGrid(an_app(), 6)
    run = Run(Federation(planned(clients=3, stragglers=1), length=40, run=RUN), grid, {"config": ConfigRecord()})
    run.members.gather(0.01, wanted=6, least=6)
    assert run.form(0.01)
    first, second = run.federation.cohorts.rosters.values()
    first.left.add(first.members[0])
    first.missed[first.members[1]] = run.federation.cohorts.patience
    second.void = run.federation.cohorts.patience
    assert run.federation.failing() == [0, 1]
    assert run.why_closed(0) == "can bear 1 of its 3 clients missing: 1 can take no further round, 1 missed too many"
    assert run.why_closed(1) == "had 3 void rounds in a row"
    run.federation.rosters[1].server.announce(closing=True)
    assert run.why_closed(1) == "has had all its rounds"
