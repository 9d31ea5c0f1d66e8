"""A round of our SecAgg and SecAgg+ beside one of Flower's SecAgg+, all clients and the server, nobody lost.

python benchmarks/secagg.py         a table, in some minutes
python benchmarks/secagg.py --json  the same as one JSON object

Needs `pip install flwr==1.41.0` beside the package.

50 clients, 1,000,000 float32 values each, one process, one thread of ours; sides take turns, with the same peers and
the same threshold. "work" is the processor time of a whole round: what 50 clients and the server do, all steps. At the
end each side's mean must be that of the updates, up to its own rounding and noise, or there is no record.

flower: `SecAggPlusWorkflow` (every stage of the server) with `secaggplus_mod` (every stage of a client); a message is
    handed over as it is, so nothing is serialised but what these functions serialise themselves. With all peers it is
    its SecAgg. Its masks come from numpy's Mersenne Twister and a seed of 32 bits, modulo 2^32; it adds no noise.
ours: `lightdp_lab.schemes` on a `Net`: every message is bytes, packed to as many bits as the sum needs. Masks are
    AES-128-CTR, with half of a 256-bit key as the first counter; DP noise is added. "32 bits" is the same modulo 2^32,
    as Flower's, more than needed.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import logging
import os
import statistics
import time
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}  # read when flwr is imported

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict  # type: ignore[import-not-found,unused-ignore]
from flwr.client.mod import secaggplus_mod  # type: ignore[import-not-found,unused-ignore]
from flwr.common import (  # type: ignore[import-not-found,unused-ignore]
    Code,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.compat.common import recorddict_compat as compat  # type: ignore[import-not-found,unused-ignore]
from flwr.server import LegacyContext, SimpleClientManager  # type: ignore[import-not-found,unused-ignore]
from flwr.server.strategy import FedAvg  # type: ignore[import-not-found,unused-ignore]
from flwr.server.workflow import SecAggPlusWorkflow  # type: ignore[import-not-found,unused-ignore]
from flwr.supercore.task_identity import TaskIdentity  # type: ignore[import-not-found,unused-ignore]

from lightdp_lab import bench
from lightdp_lab.schemes import Net, Task
from lightdp_lab.schemes.secagg import SecAgg, SecAggPlus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

CLIENTS, PARAMETERS = 50, 1_000_000
CLAIM = 3.0  # our SecAgg takes at most so many times Flower's work

Updates = list["NDArray[np.float32]"]


class Here:
    """Flower's `Grid` without a network: a message becomes its client's answer."""

    def __init__(self, updates: Updates) -> None:
        self._updates = updates
        self._contexts = {
            i: Context(run_id=1, node_id=i, node_config={}, state=RecordDict(), run_config={})
            for i in range(1, len(updates) + 1)
        }

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:  # noqa: ARG002
        """All answers."""
        copies = [copy.deepcopy(message) for message in messages]  # clients change what they get; it is small
        return [secaggplus_mod(each, self._contexts[each.metadata.dst_node_id], self._trained) for each in copies]

    def _trained(self, message: Any, _context: Any) -> Any:  # noqa: ANN401  Flower's own types
        update = self._updates[message.metadata.dst_node_id - 1]
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([update]), num_examples=1, metrics={})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)


def flower(updates: Updates, degree: int, threshold: int) -> NDArray[np.float64]:
    """The mean by a round of Flower's workflow."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1  # what a running server would have set
    manager = SimpleClientManager()
    for i in range(1, len(updates) + 1):
        proxy: Any = SimpleNamespace(node_id=i, cid=str(i))  # as much of a client as the server needs here
        manager.register(proxy)
    context = LegacyContext(
        Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={}),
        strategy=FedAvg(fraction_fit=1.0, min_fit_clients=len(updates), min_available_clients=len(updates)),
        client_manager=manager,
    )
    start = ndarrays_to_parameters([np.zeros(1, np.float32)])
    context.state.array_records["parameters"] = compat.parameters_to_arrayrecord(start, keep_input=True)
    context.state.config_records["config"] = ConfigRecord({"current_round": 1})
    workflow = SecAggPlusWorkflow(degree + 1, threshold, max_weight=1.0, clipping_range=1.0)
    grid: Any = Here(updates)
    workflow(grid, context)
    result = compat.arrayrecord_to_parameters(context.state.array_records["parameters"], keep_input=True)
    mean: NDArray[np.float64] = parameters_to_ndarrays(result)[0]
    return mean


def ours(scheme: SecAgg, updates: Updates) -> NDArray[np.float64]:
    """The mean by a round of ours."""
    return scheme.round(updates, Net(len(updates))).total / len(updates)


def wide(scheme: SecAgg) -> SecAgg:
    """The same modulo 2^32."""
    scheme.__dict__["grid"] = dataclasses.replace(scheme.grid, bits=32)
    return scheme


def measure(clients: int, parameters: int, turns: int) -> dict[str, Any]:
    """The record."""
    task = Task(clients, clients // 5, clients // 5, parameters)
    updates = list(np.random.default_rng(0).normal(0, parameters**-0.5, (clients, parameters)).astype(np.float32))
    mean = np.mean(updates, axis=0, dtype=np.float64)
    full, sparse = SecAgg(task), SecAggPlus(task)
    deviation = np.sqrt(full.noise(clients)) / clients
    rounding = 2 / (1 << 22)  # of Flower's default grid
    sides: dict[str, tuple[Callable[[], NDArray[np.float64]], float]] = {
        "flower, all peers": (lambda: flower(updates, clients - 1, full.threshold), rounding),
        "ours, all peers": (lambda: ours(full, updates), deviation),
        "ours, all peers, 32 bits": (lambda: ours(wide(SecAgg(task)), updates), deviation),
        f"flower, {sparse.degree} peers": (lambda: flower(updates, sparse.degree, sparse.threshold), rounding),
        f"ours, {sparse.degree} peers": (lambda: ours(sparse, updates), deviation),
    }
    load = os.getloadavg()[0]
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    work: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, (play, error) in sides.items():
            begun, busy = time.perf_counter(), time.process_time()
            found = play()
            work[name].append(time.process_time() - busy)
            seconds[name].append(time.perf_counter() - begun)
            spread = float(np.std(found - mean))
            if spread > 1.1 * error:
                raise SystemExit(f"{name}: the mean is off by {spread:g}, {error:g} expected")
    rows = {}
    for name in sides:
        theirs = work[name.replace("ours", "flower").removesuffix(", 32 bits")]
        rows[name] = {
            "work": statistics.median(work[name]),
            "seconds": statistics.median(seconds[name]),
            "x_flower": statistics.median(mine / its for mine, its in zip(work[name], theirs, strict=True)),
        }
    versions = {name: version(name) for name in ("flwr", "pycryptodome")}
    loads = {"load": round(load, 2), "load_at_end": round(os.getloadavg()[0], 2)}
    return {
        "conditions": {**bench.conditions(), **versions, **loads},
        "clients": clients,
        "parameters": parameters,
        "bits": full.grid.bits,
        "threshold": {"all peers": full.threshold, f"{sparse.degree} peers": sparse.threshold},
        "turns": turns,
        "methods": rows,
        "claim": {"x_flower": CLAIM, "holds": rows["ours, all peers"]["x_flower"] <= CLAIM},
    }


def show(record: dict[str, Any]) -> None:
    """Print a record."""
    where = record["conditions"]
    print(
        f"{where['cpu']}, {where['cores']} cores, load {where['load']} to {where['load_at_end']}, flwr {where['flwr']}"
    )
    print(f"a round of {record['clients']} clients, {record['parameters']:,} values of {record['bits']} bits:")
    print(f"{'':28}{'work, s':>10}{'seconds':>10}{'× Flower':>10}")
    for name, row in record["methods"].items():
        print(f"{name:28}{row['work']:10.2f}{row['seconds']:10.2f}{row['x_flower']:10.3f}")
    claim = record["claim"]
    print(f"SecAgg in at most {claim['x_flower']:g} times Flower's work: {'yes' if claim['holds'] else 'NO'}")


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--parameters", type=int, default=PARAMETERS)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    record = measure(arguments.clients, arguments.parameters, arguments.turns)
    if arguments.json:
        print(json.dumps(record, indent=2))
    else:
        show(record)


if __name__ == "__main__":
    main()
