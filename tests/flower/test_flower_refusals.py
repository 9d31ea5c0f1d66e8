"""Every refusal on the page of refusals is provoked at a real node, and none is listed that no node says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod

import lightdp
from lightdp import errors
from lightdp.client_set import ClientSet
from lightdp.federation import Federation, Member
from lightdp.keys import Identity
from lightdp.protocol import Client, File, Server
from lightdp.protocol.host import Host
from lightdp.wire import Announcement, Kind
from lightdp.wire import Message as Bytes
from support.flower_talk import RUN, Talk, a_plan, a_record_app, enrolment, record_of, records_of
from support.parties import joined, planned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Patch = pytest.MonkeyPatch
    Provoke = Callable[[Path, Patch], Message | str]

ALL = [each for name in errors.__all__ if name.endswith("Error") for each in getattr(errors, name).refusals]
PROVOKED: dict[str, Provoke] = {}


def says(words: str) -> Callable[[Provoke], Provoke]:
    """Register what makes a node, or the client or member in it, refuse with these words."""

    def register(provoke: Provoke) -> Provoke:
        PROVOKED[words] = provoke
        return provoke

    return register


def refused(call: Callable[[], object]) -> str:
    """The line that a node would send for what a client or member raises."""
    with pytest.raises(errors.LightDPError) as caught:
        call()
    return errors.to_text(caught.value)


def enrolled(**config: Any) -> Talk:
    talk = Talk().sets(config)
    talk.enrol()
    return talk


def in_file(folder: Path, **config: Any) -> Talk:
    """Three nodes that have enrolled, the first of them with a state file s.json."""
    talk = Talk()
    talk.grid.nodes[0].config |= {"lightdp-state": str(folder / "s.json")} | config
    talk.enrol()
    return talk


def pinned(folder: Path, pins: Callable[[list[str], list[str]], str]) -> Message:
    """What a node with these pins, made from names and keys of all nodes, answers to the first round."""
    talk = Talk()
    names, keys = ["ann", "bob", "cem"], []
    for node, name in zip(talk.grid.nodes, names, strict=True):
        identity = Identity.generate()
        identity.save(folder / name)
        keys.append(identity.public.hex())
        node.config |= {"lightdp-identity": str(folder / name), "lightdp-name": name}
    (folder / "pins").write_text(pins(names, keys))
    talk.grid.nodes[0].config["lightdp-pins"] = str(folder / "pins")
    talk.enrol()
    return talk.grid.handle(0, talk.start())


# ---- arguments ----


@says("node_config must have …, which operators set")
def _(_: Path, __: Patch) -> Message:
    talk = Talk()
    del talk.grid.nodes[0].config["lightdp-max-epsilon"]
    return talk.key(0)


@says("node_config must not have")
def _(_: Path, __: Patch) -> Message:
    return Talk().sets({"lightdp-max-epsilno": 1.0}).key(0)


@says("run_config must not have …: they belong in node_config")
def _(_: Path, __: Patch) -> Message:
    talk = Talk()
    talk.grid.run_config["lightdp-unit"] = "client"
    return talk.key(0)


@says("must not be true on a node outside Flower's simulation engine")
def _(_: Path, __: Patch) -> Message:
    talk = Talk()
    talk.grid.run_config["lightdp-simulation"] = True
    return talk.key(0)


@says("lightdp-identity and lightdp-pins must name files that can be read")
def _(folder: Path, _: Patch) -> Message:
    return Talk().sets({"lightdp-identity": str(folder / "nothing")}).key(0)


@says("lightdp-state must be a file in a folder that exists")
def _(folder: Path, _: Patch) -> Message:
    return Talk().sets({"lightdp-state": str(folder / "no" / "s.json")}).key(0)


@says("anchor must exist")
def _(folder: Path, _: Patch) -> Message:
    talk = in_file(folder, **{"lightdp-anchor": str(folder / "anchor")})
    (folder / "anchor").unlink()
    return talk.grid.handle(0, talk.start())


@says("holds something that is no state")
def _(folder: Path, _: Patch) -> Message:
    talk = in_file(folder)
    (folder / "s.json").write_text("damaged")
    return talk.grid.handle(0, talk.start())


@says("must be private (mode 0600)")
def _(folder: Path, _: Patch) -> Message:
    talk = in_file(folder)
    (folder / "s.json").chmod(0o644)
    return talk.grid.handle(0, talk.start())


# ---- plans and limits ----


@says("the plan's masks are")
def _(_: Path, __: Patch) -> Message:
    plan = a_plan(colluders=0, calibration="repair", masks="drawn", rounds=4)
    return Talk(plan=plan).sets({"lightdp-masks": "gaussian"}).key(0)


@says("this node accepts lightdp-")
def _(_: Path, __: Patch) -> Message:
    return Talk(plan=a_plan(unit="record")).key(0)


@says("the plan's … is … lightdp-")
def _(_: Path, __: Patch) -> Message:
    return Talk().sets({"lightdp-max-stragglers": 0}).key(0)


@says("lightdp-record-clip must say to what norm")
def _(_: Path, __: Patch) -> Message:
    return Talk(plan=a_plan(unit="record")).sets({"lightdp-unit": "record"}).key(0)


@says("the plan protects records, so the app must clip")
def _(_: Path, __: Patch) -> Message:
    plan = a_plan(unit="record")
    return Talk(plan=plan).sets(records_of(plan.clip)).key(0)


@says("Flower keeps replies that come too late")
def _(_: Path, __: Patch) -> Message:
    return Talk().key(0, plan=a_plan(late="unseen").to_json())


@says("a train message without a plan and roster")
def _(_: Path, __: Patch) -> Message:
    talk = Talk()
    return talk.grid.handle(0, Message(RecordDict({"arrays": talk.arrays}), talk.grid.nodes[0].id, "train"))


@says("needs a strategy of its own on the server: take it out")
def _(_: Path, __: Patch) -> Message:
    app = ClientApp(mods=[lightdp.flower.mod, fixedclipping_mod])
    app.train()(lambda message, _: message)  # never called
    return Talk(app).key(0)


@says("the plan must not change in a run")
def _(_: Path, __: Patch) -> Message:
    return enrolled().key(0, plan=a_plan(rounds=9).to_json())


# ---- states ----


@says("is lost")
def _(folder: Path, _: Patch) -> Message:
    talk = in_file(folder)
    (folder / "s.json").unlink()
    talk.grid.restart(0)
    return talk.grid.handle(0, talk.start())


@says("an older copy could answer a round again")
def _(folder: Path, _: Patch) -> Message:
    talk = in_file(folder)
    old = (folder / "s.json").read_bytes()
    assert talk.grid.handle(0, talk.start()).has_content()
    (folder / "s.json").write_bytes(old)
    return talk.grid.handle(0, talk.start())


@says("was saved by another client, or replaced by a copy")
def _(folder: Path, patch: Patch) -> Message:
    talk = in_file(folder)
    old, append = (folder / "s.json").read_bytes(), File.append
    talk.mean()

    def replaced(file: File, entry: bytes) -> None:
        (folder / "s.json").write_bytes(old)  # while the node handles a message
        append(file, entry)

    patch.setattr(File, "append", replaced)
    return talk.grid.handle(0, talk.start())


@says("the state was saved on another machine")
def _(_: Path, patch: Patch) -> Message:
    talk = enrolled()
    patch.setattr(Host, "here", lambda: Host("another machine", None))
    return talk.grid.handle(0, talk.start())


@says("the state has begun this run in another file")
def _(folder: Path, _: Patch) -> Message:
    talk = in_file(folder)
    (folder / "s.json").rename(folder / "t.json")
    talk.grid.nodes[0].config["lightdp-state"] = str(folder / "t.json")
    return talk.grid.handle(0, talk.start())


@says("the state is that of … in this run, and lightdp-name is")
def _(folder: Path, _: Patch) -> Message:
    talk = in_file(folder, **{"lightdp-name": "ann"})
    talk.grid.nodes[0].config["lightdp-name"] = "bob"
    return talk.grid.handle(0, talk.start())


@says("of an earlier version of lightdp")
def _(folder: Path, _: Patch) -> Message:
    talk, path = in_file(folder), folder / "s.json"
    record = record_of(path)
    client = Client.new(talk.plan, length=4, run=RUN, name="ann", store=File(folder / "old"))
    client.enrol()
    path.write_text(json.dumps(record | {"client": (folder / "old").read_text(), "serial": record["serial"] + 1}))
    talk.grid.restart(0)
    return talk.grid.handle(0, talk.start())


@says("this node has no state of the run")
def _(folder: Path, _: Patch) -> Message:
    talk = enrolled()
    talk.grid.restart(0)
    talk.grid.nodes[0].config["lightdp-state"] = str(folder / "new.json")
    return talk.grid.handle(0, talk.start())


# ---- messages ----


@says("of another run than this node's last key round")
def _(_: Path, __: Patch) -> Message:
    talk = enrolled()
    return talk.grid.handle(0, talk.start(run=b"another 16 bytes"))


def another_roster(client: Client | Member) -> bytes:
    """A ROSTER message with number 0, of a client and four new ones."""
    server = Server(planned(), length=4, run=RUN)
    for message in (client.enrol(), *(other.enrol() for other in joined(planned(), 4)[1][1:])):
        server.enrol(message)
    return server.roster()


@says("the roster must not change in a run")
def _(_: Path, __: Patch) -> str:
    client = joined(planned(), 4)[1][0]
    return refused(lambda: client.join(another_roster(client)))


def a_member(rosters: int = 1) -> tuple[Federation, Member]:
    """A member of a federation with so many rosters, and its server."""
    plan = planned()
    federation = Federation(plan, length=4, run=RUN, patience=1)
    members = [Member.new(plan, length=4, run=RUN, name=f"client-{i}") for i in range(5 * rosters)]
    for member in members:
        federation.enrol(member.enrol())
    federation.form()
    return federation, next(member for member in members if member.name in federation.rosters[rosters - 1].names)


@says("rosters must have growing numbers")
def _(_: Path, __: Patch) -> str:
    federation, member = a_member()
    member.join(federation.rosters[0].server.roster())
    return refused(lambda: member.join(another_roster(member)))


@says("a roster of this federation")
def _(_: Path, __: Patch) -> str:
    member, large = a_member()[1], joined(planned(clients=10), 4)[0]
    return refused(lambda: member.join(large.roster()))


@says("a roster that this member has not joined, or answers no more")
def _(_: Path, __: Patch) -> str:
    federation, member = a_member(rosters=2)
    member.join(federation.rosters[1].server.roster())
    return refused(lambda: member.begin(federation.rosters[0].server.announce()))


@says("was answered, or is over")
def _(_: Path, __: Patch) -> Message:
    talk = enrolled()
    message = talk.start()
    assert talk.grid.handle(0, message).has_content()
    return talk.grid.handle(0, message)


@says("a closing round must follow")
def _(_: Path, __: Patch) -> Message:
    talk = enrolled()
    start, roster = talk.server.announce(closing=True), talk.server.roster()
    return talk.grid.handle(0, talk.order(run=RUN, start=start, roster=roster, closing=True))


@says("arrays must hold length=")
def _(_: Path, __: Patch) -> Message:
    talk = enrolled()
    talk.arrays = ArrayRecord({"w": Array(np.zeros(5))})
    return talk.grid.handle(0, talk.start())


@says("the names and shapes of trained arrays must be those")
def _(_: Path, __: Patch) -> Message:
    talk = enrolled()
    talk.mean()
    talk.arrays = ArrayRecord({"v": Array(np.zeros(4))})
    return talk.grid.handle(0, talk.start())


@says("announcement … contradicts")
def _(_: Path, __: Patch) -> Message:
    talk = enrolled()
    talk.mean()
    talk.mean()
    everybody, some = ClientSet.of(3, [0, 1, 2]), ClientSet.of(3, [0, 1])
    told = Announcement(round=2, clients=3, past=(some, everybody), closing=False, grace=0)
    roster = talk.server._fixed().hash
    start = Bytes(kind=Kind.ANNOUNCE, run=RUN, round=2, roster=roster, payload=told.to_bytes()).to_bytes()
    return talk.grid.handle(0, talk.start(start=start))


# ---- budgets ----


@says("above lightdp-total-epsilon")
def _(folder: Path, _: Patch) -> Message:
    talk = Talk()
    total = {"lightdp-total-epsilon": 7.0, "lightdp-total-delta": 1e-5, "lightdp-state": str(folder / "s.json")}
    talk.grid.nodes[0].config |= total
    return talk.key(0)


@says("lightdp-total-epsilon is for one unit and adjacency")
def _(folder: Path, _: Patch) -> Message:
    talk = Talk(a_record_app(lambda weights: weights[None]))
    talk.grid.nodes[0].config["lightdp-state"] = str(folder / "s.json")
    talk.enrol()
    total = {"lightdp-total-epsilon": 99.0, "lightdp-total-delta": 0.1}
    talk.grid.nodes[0].config |= records_of(1.0) | total
    return talk.key(0, run=b"another 16 bytes", plan=a_plan(unit="record", clip=1.0).to_json())


@says("round…could … at delta=")
def _(_: Path, __: Patch) -> Message:
    talk = Talk(plan=a_plan(rounds=1))
    talk.enrol()
    while True:
        replies = [talk.grid.handle(at, talk.start()) for at in range(3)]
        if replies[0].has_error():
            return replies[0]
        for reply in replies:
            talk.server.receive(reply.content.array_records["arrays"]["lightdp"].numpy().tobytes())
        talk.server.close()


# ---- bytes ----


@says("clients that are not pinned")
def _(folder: Path, _: Patch) -> Message:
    return pinned(folder, lambda names, keys: f"{names[0]} {keys[0]}\n")


@says("has an identity other than the pinned one")
def _(folder: Path, _: Patch) -> Message:
    return pinned(folder, lambda names, keys: f"{names[1]} {'00' * 32}\n{names[2]} {keys[2]}\n")


@says("has the pinned identity of")
def _(folder: Path, _: Patch) -> Message:
    return pinned(folder, lambda names, keys: f"dan {keys[1]}\n{names[2]} {keys[2]}\n")


@says("does not contain the enrolment of")
def _(_: Path, __: Patch) -> Message:
    talk, other = enrolled(), enrolled()
    return talk.grid.handle(0, talk.start(roster=other.server.roster()))


@says("roster must show")
def _(_: Path, __: Patch) -> Message:
    talk = enrolled()
    whole = talk.server._fixed()
    me = whole.names.index(f"node-{talk.grid.nodes[0].id}")
    part = whole.excerpt([me, (me + 1) % 3])
    message = Bytes(kind=Kind.ROSTER, run=RUN, payload=part.to_bytes()).to_bytes()
    return talk.grid.handle(0, talk.start(roster=message))


@says("roster is of another run or plan")
def _(_: Path, __: Patch) -> Message:
    talk, other = enrolled(), Server(a_plan(epsilon=80.0), length=4, run=RUN)
    for at in range(3):
        other.enrol(enrolment(talk.key(at)))
    return talk.grid.handle(0, talk.start(roster=other.roster()))


@says("must be … version")
def _(_: Path, __: Patch) -> Message:
    talk = enrolled()
    start = bytearray(talk.server.announce(since=0))
    start[3] += 1
    return talk.grid.handle(0, talk.start(start=bytes(start)))


@says("this node failed, and nothing left it")
def _(folder: Path, patch: Patch) -> Message:
    talk = in_file(folder)

    def full(*_: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    patch.setattr(File, "append", full)
    return talk.grid.handle(0, talk.start())


def test_no_refusal_is_provoked_that_is_not_listed() -> None:
    assert len({each.says for each in ALL}) == len(ALL)
    assert set(PROVOKED) == {each.says for each in ALL}


@pytest.mark.parametrize("listed", ALL, ids=lambda each: each.says)
def test_a_real_node_refuses_with_the_words_on_the_page(
    listed: errors.Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = PROVOKED[listed.says](tmp_path, monkeypatch)
    assert isinstance(reply, str) or reply.has_error(), "something left the node"
    reason = reply if isinstance(reply, str) else str(reply.error.reason)
    assert errors.refusal_of(reason) == listed, reason


@pytest.mark.parametrize("restarted", [False, True])
def test_pins_that_change_in_a_run_are_named(tmp_path: Path, restarted: bool) -> None:
    talk = in_file(tmp_path)
    talk.mean()
    name = f"node-{talk.grid.nodes[1].id}"
    (tmp_path / "pins").write_text(f"{name} {'00' * 32}\n")
    talk.grid.nodes[0].config["lightdp-pins"] = str(tmp_path / "pins")
    if restarted:
        talk.grid.restart(0)
    reason = str(talk.grid.handle(0, talk.start()).error.reason)
    assert reason.startswith("lightdp/wire: ")
    assert f"{name} has an identity other than the pinned one" in reason
    assert getattr(errors.refusal_of(reason), "says", None) == "has an identity other than the pinned one"
