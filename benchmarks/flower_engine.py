"""A plain FedAvg round of the simulator beside one of Flower's simulation engine.

python benchmarks/flower_engine.py         a table, in under five minutes
python benchmarks/flower_engine.py --json  the same as one JSON object

Needs `pip install "flwr[simulation]==1.41.0"` beside the package and its extra `train`.

50 clients, one float32 array of 1,000,000 parameters. A client's work is trivial: it adds a constant to what it
received. Nothing is evaluated. Everything runs in one process and takes turns, a Flower round first and then one
of each of ours; figures are medians over the turns, without the start and the first two rounds of each. At the
end the models of Flower and of our plain round must be the same, or there is no record.

flower: ServerApp and ClientApp of the message API with the strategy FedAvg, by `run_simulation` on Ray, one actor
    for each core. A round is what `FedAvg.start` does between two calls of its `evaluate_fn`: 50 messages out, 50
    clients, 50 replies with arrays back, and their weighted mean. Flower keeps clients apart and carries bytes
    between processes, which our `distribution` fidelity does not; it also waits in steps of 0.1 s. Both are part
    of what a user of the engine pays for a round.
none, repair: a round of `lightdp.training.simulator.Run`, whole: arrivals, received weights, 50 updates, clipping,
    the sum, noise, the server's step, the odometer and the line of the log. Only `sgd.local_updates` is
    replaced by the constant. "none" is FedAvg of everybody; "repair" has up to 10 stragglers a round, pairwise noise
    that they leave and its later repair, added in distribution.
protocol: "repair" with real clients and a real server: keys, masks, packed uploads. It does what Flower's engine
    does not, and is here for its cost.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

os.environ |= {  # read when flwr and ray are imported
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # type: ignore[import-not-found,unused-ignore]
from flwr.clientapp import ClientApp  # type: ignore[import-not-found,unused-ignore]
from flwr.serverapp import ServerApp  # type: ignore[import-not-found,unused-ignore]
from flwr.serverapp.strategy import FedAvg  # type: ignore[import-not-found,unused-ignore]
from flwr.simulation import run_simulation  # type: ignore[import-not-found,unused-ignore]

from lightdp.training import gradients, sgd
from lightdp.training.config import Config
from lightdp.training.data import Dataset
from lightdp.training.simulator import Run
from lightdp_lab import bench

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

CLIENTS, PARAMETERS, STEP = 50, 1_000_000, 1e-3
WARM = 2  # rounds of each method that do not count
CLAIM = 10.0  # times faster than Flower: the plain round

OURS: dict[str, dict[str, Any]] = {
    "none": {"scheme": "none", "arrivals": "none"},
    "repair": {"scheme": "repair", "arrivals": "uniform"},
    "protocol": {"scheme": "repair", "arrivals": "uniform", "fidelity": "protocol"},
}
_ALL: dict[str, Any] = {
    "unit": "client",
    "clients": CLIENTS,
    "colluders": 10,
    "stragglers": 10,
    "rounds": 1000,  # more than will be played
    "clip": 2.0,  # the constant has norm 1
    "lr": 1.0,
    "momentum": 0.0,
    "evaluate_every": 1000,
    "device": "cpu",
}


def work(message: Any, _context: Any) -> Any:  # noqa: ANN401  Flower's own types
    """A client's round in Flower."""
    arrays = [array + np.float32(STEP) for array in message.content["arrays"].to_numpy_ndarrays()]
    content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)


def same_work(model: nn.Module, _x: Tensor, _y: Tensor, parts: Sequence[Tensor], **_settings: object) -> Tensor:
    """The same of all our clients, as `sgd.local_updates` returns it: trained minus received."""
    received = gradients.flatten(model)
    return (received.expand(len(parts), -1) + STEP).sub_(received)


class Turns:
    """Flower's `evaluate_fn`: notes how long its round took, then lets ours have their turn."""

    def __init__(self, folder: Path, protocol_every: int) -> None:
        x = np.zeros((CLIENTS, PARAMETERS // 10 - 1), np.float32)  # and a bias, for 10 classes
        y = np.arange(CLIENTS) % 10
        data = Dataset(name="zeros", train_x=x, train_y=y, test_x=x[:1], test_y=y[:1], classes=10)
        self.runs = {
            name: Run(Config(**_ALL, **settings), folder / f"{name}.jsonl", dataset=data)
            for name, settings in OURS.items()
        }
        self.plays = {name: run.lines() for name, run in self.runs.items()}
        for play in self.plays.values():
            next(play)  # the line before the first round
        self.every = {"none": 1, "repair": 1, "protocol": protocol_every}
        self.seconds: dict[str, dict[int, float]] = {name: {} for name in ("flower", *OURS)}  # by turn
        self.begun = 0.0

    def __call__(self, turn: int, _arrays: Any) -> None:  # noqa: ANN401  Flower's own type
        """After Flower's round number `turn`; 0 is before its first."""
        if turn > 0:
            self.seconds["flower"][turn] = time.perf_counter() - self.begun
            for name, play in self.plays.items():
                if turn % self.every[name] == 0:
                    begun = time.perf_counter()
                    next(play)
                    self.seconds[name][turn] = time.perf_counter() - begun
        self.begun = time.perf_counter()

    def figures(self) -> dict[str, dict[str, float]]:
        """Of each method: seconds a round, and how many times faster than Flower's round of the same turn."""
        result = {}
        for name, seconds in self.seconds.items():
            counted = list(seconds)[1 if name == "protocol" else WARM :]
            times = [seconds[turn] for turn in counted]
            ratios = [self.seconds["flower"][turn] / seconds[turn] for turn in counted]
            result[name] = {
                "seconds": statistics.median(times),
                "fastest": min(times),
                "slowest": max(times),
                "x_flower": statistics.median(ratios),
                "rounds": len(times),
            }
        return result


def measure(turns: int, protocol_every: int) -> dict[str, Any]:
    """The record."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder, patch.object(sgd, "local_updates", same_work):
        sides = Turns(Path(folder), protocol_every)
        client, server, models = ClientApp(), ServerApp(), []
        client.train()(work)

        def main(grid: Any, _context: Any) -> None:  # noqa: ANN401  Flower's own types
            strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
            start = ArrayRecord([np.zeros(PARAMETERS, np.float32)])
            result = strategy.start(grid, start, num_rounds=turns + WARM, evaluate_fn=sides)
            models.extend(result.arrays.to_numpy_ndarrays())

        server.main()(main)
        run_simulation(
            server,
            client,
            CLIENTS,
            backend_config={
                "init_args": {"num_cpus": cores, "log_to_driver": False, "logging_level": logging.ERROR},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
        plain = sides.runs["none"].state.weights.numpy()
        np.testing.assert_allclose(models[0], plain, rtol=1e-4)
        np.testing.assert_allclose(plain, STEP * (turns + WARM), rtol=1e-4)
        methods = sides.figures()
    versions = {name: version(name) for name in ("flwr", "ray", "torch")}
    loads = {"load": round(load, 2), "load_at_end": round(os.getloadavg()[0], 2)}
    return {
        "conditions": {**bench.conditions(), **versions, **loads},
        "clients": CLIENTS,
        "parameters": PARAMETERS,
        "methods": methods,
        "claim": {"x_flower": CLAIM, "holds": methods["none"]["x_flower"] >= CLAIM},
    }


def show(record: dict[str, Any]) -> None:
    """Print a record."""
    where = record["conditions"]
    print(f"{where['cpu']}, {where['cores']} cores, load {where['load']} to {where['load_at_end']}")
    print(f"flwr {where['flwr']}, ray {where['ray']}, torch {where['torch']}")
    print(f"a round of {record['clients']} clients, {record['parameters']:,} parameters, trivial work:")
    print(f"{'':10}{'seconds':>10}{'fastest':>10}{'slowest':>10}{'× Flower':>10}{'rounds':>8}")
    for name, row in record["methods"].items():
        times = "".join(f"{row[key]:10.3f}" for key in ("seconds", "fastest", "slowest"))
        print(f"{name:10}{times}{row['x_flower']:10.2f}{row['rounds']:8}")
    claim = record["claim"]
    print(f"plain round at least {claim['x_flower']:g} times faster than Flower: {'yes' if claim['holds'] else 'NO'}")


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turns", type=int, default=15, help="that count")
    parser.add_argument("--protocol-every", type=int, default=4, help="turns from one protocol round to the next")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    record = measure(arguments.turns, arguments.protocol_every)
    if arguments.json:
        print(json.dumps(record, indent=2))
    else:
        show(record)


if __name__ == "__main__":
    main()
