"""States of two nodes in the middle of a training, as pages of the documentation look at them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

import lightdp

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 4  # values of a model; no figure depends on it


def save_ann(place: Path) -> None:
    """The state of a client of five: used in a round, late in the next, and without news of the third."""
    plan = lightdp.plan(
        clients=5, colluders=1, stragglers=1, rounds=6, epsilon=8, delta=1e-5, unit="client", calibration="repair"
    )
    _play(plan, b"example run 0001", ["ann", "bob", "cem", "dan", "eva"], place / "clone/ann.state", rounds=3, late=2)


def save_node_7(place: Path) -> None:
    """The state of a Flower node of ten, under the plan of the page: used in 18 rounds and late in one, of 20."""
    plan = lightdp.plan(
        clients=10, colluders=1, stragglers=2, rounds=50, epsilon=8, delta=1e-5, unit="client", clip=1, momentum=0
    )
    run, path = bytes.fromhex("496c95083f82a0e2d0e7c99c525f153c"), place / "var/lib/lightdp/state.json"
    _play(plan, run, ["node-7", *(f"node-{i}" for i in range(10) if i != 7)], path, rounds=20, late=19)
    record = {"serial": 22, "client": path.read_text(), "run": run.hex(), "plan": "{}", "length": LENGTH, "before": 0.0}
    path.write_text(json.dumps(record | {"kinds": []}))


def _play(plan: lightdp.Plan, run: bytes, names: list[str], path: Path, *, rounds: int, late: int) -> None:
    """So many rounds, of which the last stays open; the first client keeps its state, and is too late in one round."""
    server = lightdp.Server(plan, length=LENGTH, run=run)
    stores = [lightdp.File(path), *(None for _ in names[1:])]
    clients = [
        lightdp.Client.new(plan, length=LENGTH, run=run, name=name, store=store)
        for name, store in zip(names, stores, strict=True)
    ]
    for client in clients:
        server.enrol(client.enrol())
    for client in clients:
        client.join(server.roster(client.name))
    for number in range(1, rounds + 1):
        start = server.announce(since=0)
        first, *others = [client.begin(start).upload(np.zeros(LENGTH)) for client in clients]
        for upload in others if number == late else [first, *others]:
            server.receive(upload)
        if number < rounds:
            server.close()
        if number == late:
            server.receive(first)
