"""What becomes of uploads that miss their round, in Flower's simulation engine, with grace and without.

python benchmarks/flower_late.py                a table, in about half an hour
python benchmarks/flower_late.py --json         the same as one JSON object
python benchmarks/flower_late.py --out r.json   and written to a file

Needs `pip install "flwr[simulation]==1.41.0"` beside the package. Nodes sleep instead of training, by the law of
`lightdp run --arrivals latency:MEDIAN:SPREAD:DEADLINE:SLOWFRACTION:SLOWFACTOR`: MEDIAN·exp(SPREAD·N(0, 1)) seconds a
round, SLOWFACTOR times as long for a fixed share of nodes. A round ends at DEADLINE, or when all have answered. Each
node has a state file of its own, so it answers one message after the other, as a SuperNode does.

missed: uploads that were asked for and had not come when their round ended, as a share of those asked for.
joined, late, never: what became of them: in the sum of the next round; seen later still; not seen until the end.
asked: messages with a model, as a share of nodes times rounds; nodes that fall behind are left out for a while.
in model: uploads in the model, as a share of nodes times rounds.
void: rounds in which too few were on time; all of their uploads count as missed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ |= {  # read when flwr and ray are imported
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
}

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

import lightdp
from lightdp.flower import LightDP, mod
from lightdp_lab import bench

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENTS, STRAGGLERS, MEDIAN = 6, 4, 8.0  # seconds, many more than a message takes without them
WORKERS = 9  # more than nodes: a message that waits for the one before it has a worker too
CASES = {  # spread, deadline in medians, share of slow nodes, how much slower
    "a tenth is late by chance": (0.35, 1.57, 0.0, 1.0),
    "three tenths are late by chance": (0.35, 1.2, 0.0, 1.0),
    "a tenth is late, with a heavy tail": (1.0, 3.6, 0.0, 1.0),
    "a sixth is 1.6 times slower": (0.1, 1.3, 1 / 6, 1.6),
    "a sixth is 3 times slower": (0.1, 1.3, 1 / 6, 3.0),
    "nobody is late": (0.0, 20.0, 0.0, 1.0),
}
WARM = "nobody is late"
STATES = "states"  # key of the folder of state files in a round's configuration


def settings(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """`run_simulation` has no run_config, and a node's state must be found by whichever worker has its message."""
    config = context.run_config | {"lightdp-simulation": True, "lightdp-state": os.environ[STATES]}
    own = Context(context.run_id, context.node_id, context.node_config, context.state, config)
    return call_next(message, own)


def train(message: Message, context: Context) -> Message:
    """Sleep, and add a little."""
    config: dict[str, Any] = dict(message.content.config_records["config"])
    node = int(context.node_config["partition-id"])
    slow = config["factor"] if node < round(config["fraction"] * CLIENTS) else 1.0
    draw = np.random.default_rng([config["seed"], node, config["server-round"]]).standard_normal()
    time.sleep(MEDIAN * slow * float(np.exp(config["spread"] * draw)))
    arrays = ArrayRecord({"w": Array(message.content.array_records["arrays"]["w"].numpy() + 0.01)})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


class Counted(LightDP):
    """Counts the messages with a model."""

    asked = 0

    def configure_train(self, *arguments: Any, **more: Any) -> list[Message]:  # noqa: ANN401  as LightDP
        """As LightDP."""
        messages = super().configure_train(*arguments, **more)
        self.asked += len(messages)
        return messages


def measure_case(grid: Grid, case: str, grace: int, rounds: int, planned: int) -> dict[str, float]:
    """One training, under a plan for `planned` rounds."""
    spread, deadline, fraction, factor = CASES[case]
    plan = lightdp.plan(
        clients=CLIENTS, colluders=1, stragglers=STRAGGLERS, rounds=planned, epsilon=1e6, delta=1e-5, unit="client",
        calibration="repair", grace=grace,
    )  # fmt: skip
    strategy = Counted(FedAvg(fraction_evaluate=0.0), plan, patience=rounds)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"w": Array(np.zeros(10))}),
        num_rounds=rounds,
        timeout=MEDIAN * deadline,
        train_config=ConfigRecord({"spread": spread, "fraction": fraction, "factor": factor, "seed": 1}),
    )
    rows: list[dict[str, Any]] = [dict(row) for row in result.train_metrics_clientapp.values()]
    used, joined = (sum(row[name] for row in rows) for name in ("lightdp-used", "lightdp-joined"))
    void = sum(row["lightdp-used"] == 0 for row in rows)  # rounds in which too few were on time
    late, missed, every = rows[-1]["lightdp-late"], strategy.asked - used, CLIENTS * rounds
    if strategy.stopped is not None:
        raise RuntimeError(f"{case}: {strategy.stopped}")
    ends = {"joined": joined, "late": late, "never": missed - joined - late}
    return {
        "missed": missed / strategy.asked,
        **{name: count / max(missed, 1) for name, count in ends.items()},
        "asked": strategy.asked / every,
        "model": (used + joined) / every,
        "void": void / rounds,
    }


def measure(rounds: int, cases: list[str], graces: list[int]) -> dict[str, Any]:
    """The record."""
    load, found = os.getloadavg()[0], dict[str, Any]()

    def main(grid: Grid, _: Context) -> None:
        while len(list(grid.get_node_ids())) < CLIENTS:
            time.sleep(0.1)
        for grace in graces:
            measure_case(grid, WARM, grace, 2, 9 * rounds)  # workers import what they need and compute the plan
        for case in cases:
            for grace in graces:
                found.setdefault(case, {})[str(grace)] = measure_case(grid, case, grace, rounds, 9 * rounds)
                print(f"  {case}, grace={grace}: {found[case][str(grace)]}", flush=True)
                time.sleep(10 * MEDIAN)  # until nobody works on an old message

    client, server = ClientApp(mods=[settings, mod]), ServerApp()
    client.train()(train)
    server.main()(main)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[STATES] = folder  # the workers inherit it
        backend: dict[str, Any] = {
            "init_args": {"num_cpus": WORKERS, "log_to_driver": False, "logging_level": logging.ERROR},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        }
        run_simulation(server, client, CLIENTS, backend_config=backend)
    versions = {name: version(name) for name in ("flwr", "ray")}
    loads = {"load": round(load, 2), "load_at_end": round(os.getloadavg()[0], 2)}
    return {"conditions": bench.conditions() | versions | loads, "clients": CLIENTS, "rounds": rounds, "cases": found}


def show(record: dict[str, Any]) -> None:
    """Print a record."""
    where = record["conditions"]
    print(f"{where['cpu']}, {where['cores']} cores, load {where['load']} to {where['load_at_end']}")
    print(f"flwr {where['flwr']}, ray {where['ray']}; {record['clients']} nodes, {record['rounds']} rounds")
    print(f"{'':38}{'missed':>8}{'joined':>8}{'late':>8}{'never':>8}{'asked':>8}{'in model':>10}{'void':>8}")
    for case, rows in record["cases"].items():
        for grace, row in rows.items():
            cells = "".join(f"{row[name]:8.1%}" for name in ("missed", "joined", "late", "never", "asked"))
            print(f"{f'{case}, {grace}':38}{cells}{row['model']:10.1%}{row['void']:8.1%}")


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--out", type=Path, help="also write the record here")
    parser.add_argument("--rounds", type=int, default=10, help="of each training")
    parser.add_argument("--cases", nargs="+", choices=[case for case in CASES if case != WARM], help="by default all")
    parser.add_argument("--grace", type=int, nargs="+", default=[1, 0], choices=[0, 1])
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    record = measure(arguments.rounds, arguments.cases or [case for case in CASES if case != WARM], arguments.grace)
    text = json.dumps(record, indent=2)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    if arguments.json:
        print(text)
    else:
        show(record)


if __name__ == "__main__":
    main()
