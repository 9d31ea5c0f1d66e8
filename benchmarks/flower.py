"""Private training in Flower's simulation engine, by five methods side by side: time, bytes, losses, accuracy.

python benchmarks/flower.py                a table, in about twenty minutes
python benchmarks/flower.py --json         the same as one JSON object
python benchmarks/flower.py --out r.json   and written to a file
python benchmarks/flower.py --times        times alone, which want a quiet machine
python benchmarks/flower.py --rest r.json  all but the times, which a record has
python benchmarks/flower.py --masks drawn  with drawn masks under repair, as plans for many rounds have them by default

Everything happens in simulations (Ray, one actor for each core) with one ClientApp, whose mod is the method's own, and
a Grid that counts, and loses what it is told to lose. Each block of timed rounds has a simulation of its own, so that
no method finds memory or caches that another has left.

plain:    FedAvg of the message API.
local:    the same with Flower's `LocalDpMod`.
secagg+:  Flower's `SecAggPlusWorkflow` and `secaggplus_mod` (legacy API), shares for everybody, threshold one half.
exact, repair: `lightdp.flower.LightDP` around FedAvg with `lightdp.flower.record_mod`.

masks: what `--masks` asks for under repair. With "auto" these plans have Gaussian masks: 20 rounds with half of the
    clients lost are too few for drawn ones to be worth their noise. "drawn" takes them all the same, where ε is at most
    100; time and bytes are then those of plans that have them by default, and accuracies are lower. The record says
    for each number of clients which masks the timed plan has (`masks`) and how much more noise variance they need than
    Gaussian ones (`mask_cost`).

seconds: a round of 1,000,000 float32 parameters and trivial work (a constant is added). Methods take turns in blocks
    of rounds; medians, without the first round of each block, which for lightdp holds the key round.
cpu: processor seconds of a round in all processes of the simulation, the mean of a block; the median over blocks. Other
    work on the machine changes it less than `seconds`.
bytes up: all objects of a client's replies in a round, serialised as Flower sends them.
trips: messages to a client and back in a round. Keys of lightdp are one trip more, once.
lost: the largest number of clients whose replies may get lost at each trip of a round, from there on, so that the
    round still ends with the right mean (within its noise). For lightdp it is what the plan allows.
accuracy: digits, records shared out evenly, a linear model, one clipped step a round, at the same true ε for the
    whole training where there is one. LocalDpMod has no accounting over rounds; it is given the noise that the
    exact composition asks for. SecAgg+ hides single updates but gives no ε.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
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
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

import lightdp
from lightdp.flower import LightDP, record_mod
from lightdp_lab import bench

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

METHODS = ("plain", "local", "secagg+", "exact", "repair")
PARAMETERS, STEP = 1_000_000, 1e-3
WAIT = 60.0  # seconds for the key round, in which workers import the package
POLL = 0.02  # seconds between two looks for replies
SMALL = 2_000  # parameters where only survival is looked at
EPSILON, DELTA, ROUNDS = 1.0, 1e-5, 20
LOUD = 1e4  # ε where only survival is looked at: noise so small that a wrong mean shows
RATE, TEST = 0.004, 360  # learning rate of the sum of all gradients, each clipped to norm 1; images that no client has
CLAIMS = {"10": 1.2, "30": 1.4}  # times plain FedAvg, by number of clients, on a processor with AVX-512 and VAES
CHOSEN = {"masks": "auto"}  # by the command line
NOTE = "bench"  # the record that tells the client which method and work it is


def make_plan(method: str, clients: int, task: str, parameters: int) -> lightdp.Plan:
    """The method's noise, for a fifth of colluders and up to half of the clients lost (accuracy: a fifth)."""
    trained, loud = task == "digits", task == "survive"
    return lightdp.plan(
        clients=clients,
        colluders=clients // 5,
        stragglers=clients // 5 if trained else clients // 2,
        rounds=ROUNDS,
        epsilon=LOUD if loud else EPSILON,
        delta=DELTA,
        clip=RATE * clients if trained else 2 * STEP * math.sqrt(parameters),
        unit="record" if trained else "client",
        records=1797 - TEST if trained else None,
        parameters=parameters,
        calibration=method,  # type: ignore[arg-type]
        masks="gaussian" if loud or method != "repair" else CHOSEN["masks"],  # type: ignore[arg-type]
    )


# Client.


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images with a constant, (n, 65), and one-hot labels, (n, 10), in one order for everybody."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return np.c_[x / 16, np.ones(len(x))][order], np.eye(10)[y[order]]


def gradient_parts(weights: np.ndarray, partition: int, partitions: int) -> np.ndarray:
    """Minus a client's clipped gradients, one for each record: (records, 65, 10)."""
    x, y = (part[TEST:][partition::partitions] for part in digits())
    scores = np.exp(x @ weights)
    error = scores / scores.sum(1, keepdims=True) - y
    norms = np.linalg.norm(error, axis=1) * np.linalg.norm(x, axis=1)
    return -RATE * partitions * x[:, :, None] * (error / np.maximum(norms, 1)[:, None])[:, None, :]


def work(message: Message, context: Context) -> Message:
    """A client's round: add the constant, or train on digits."""
    [received] = message.content.array_records.values()
    note = message.content.config_records[NOTE]
    if note["task"] == "digits":
        [(name, array)] = received.items()
        weights, node = array.numpy(), context.node_config
        parts = gradient_parts(weights, int(node["partition-id"]), int(node["num-partitions"]))
        if note["method"] in {"exact", "repair"}:
            total = lightdp.flower.RecordSum(received, context)
            total.add({name: parts})
            content = RecordDict({"arrays": total.arrays(), "metrics": MetricRecord({"num-examples": 1})})
            return Message(content, reply_to=message)
        arrays = [weights + parts.sum(axis=0).astype(weights.dtype)]
    else:
        arrays = [array + np.float32(STEP) for array in received.to_numpy_ndarrays()]
    if note["method"] == "secagg+":
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), 1, {})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)


def method_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """The mod of the method that the message belongs to."""
    note: dict[str, Any] = dict(message.content.config_records[NOTE])
    if note["method"] == "plain":
        return call_next(message, context)
    if note["method"] == "local":
        return LocalDpMod(1e9, note["sensitivity"], note["epsilon"], DELTA)(message, context, call_next)
    if note["method"] == "secagg+":
        return secaggplus_mod(message, context, call_next)
    clip = RATE * int(context.node_config["num-partitions"])
    config = context.run_config | {"lightdp-simulation": True, "lightdp-record-clip": clip}
    own = Context(context.run_id, context.node_id, context.node_config, context.state, config)
    return record_mod(message, own, call_next)


# Server.


@dataclass
class Watch(Grid):
    """The engine's Grid: names the method in every message, counts, and loses replies."""

    inner: Grid
    note: dict[str, Any] = field(default_factory=dict)
    lose: tuple[int, int] = (0, 0)  # from this trip on, so many clients' replies
    trips: int = 0
    weigh: bool = False
    bytes_up: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # by client

    def set_run(self, run: Any) -> None:  # noqa: ANN401  Flower's own type
        """As Grid."""
        self.inner.set_run(run)

    @property
    def run(self) -> Any:  # noqa: ANN401  Flower's own type
        """As Grid."""
        return self.inner.run

    def create_message(self, *arguments: Any, **options: Any) -> Message:  # noqa: ANN401  passed on
        """As Grid."""
        return self.inner.create_message(*arguments, **options)

    def get_node_ids(self) -> Iterable[int]:
        """As Grid."""
        return sorted(self.inner.get_node_ids())

    def _lost(self) -> set[int]:
        first, count = self.lose
        return set(list(self.get_node_ids())[:count]) if self.trips >= first > 0 else set()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Count one trip."""
        messages = list(messages)
        if messages:
            self.trips += 1
        for message in messages:
            message.content[NOTE] = ConfigRecord(dict(self.note))
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Count bytes where asked to; leave out the lost."""
        return [reply for reply in self._pull(message_ids) if reply.metadata.src_node_id not in self._lost()]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """As the engine does, but it asks every 0.1 s, which would count all rounds in tenths of a second.

        The lost have also answered, so that nobody is still busy.
        """
        waiting = set(self.push_messages(messages))
        ended = time.monotonic() + (math.inf if timeout is None else timeout)
        replies: list[Message] = []
        while waiting and time.monotonic() < ended:
            new = self._pull(waiting)
            replies += new
            waiting -= {reply.metadata.reply_to_message_id for reply in new}
            if waiting:
                time.sleep(POLL)
        return [reply for reply in replies if reply.metadata.src_node_id not in self._lost()]

    def _pull(self, message_ids: Iterable[str]) -> list[Message]:
        replies = list(self.inner.pull_messages(message_ids))
        if self.weigh:
            for reply in replies:
                self.bytes_up[reply.metadata.src_node_id] += weight(reply)
        return replies


def weight(message: Message) -> int:
    """Bytes of everything that Flower sends for a message."""
    return sum(len(thing.deflate()) for thing in get_all_nested_objects(message).values())


@dataclass
class Training:
    """Rounds of one method from a model of zeros, and what was seen of them."""

    watch: Watch
    context: Context
    method: str
    times: list[float] = field(default_factory=list)  # before the first round, and after each
    cpu: list[float] = field(default_factory=list)  # likewise
    trips: list[int] = field(default_factory=list)
    models: list[np.ndarray] = field(default_factory=list)  # the last one
    weigh: int = 0  # the round whose bytes are counted

    def run(self, rounds: int, shape: tuple[int, ...], task: str = "constant", timeout: float = 600.0) -> Training:
        """Train."""
        clients = len(list(self.watch.get_node_ids()))
        start = np.zeros(shape, np.float32)
        self.watch.trips, self.watch.bytes_up, self.watch.weigh = 0, defaultdict(int), False
        self.watch.note = {"method": self.method, "task": task}
        if self.method == "secagg+":
            self._legacy(rounds, start, clients, timeout)
            return self
        strategy: Any = FedAvg(fraction_evaluate=0.0, min_available_nodes=clients)
        if self.method == "local":
            noise = make_plan("local", clients, task, start.size)
            factor = math.sqrt(2 * math.log(1.25 / DELTA))  # of Flower's formula, which here must give our σ
            budget = noise.sensitivity * factor / noise.sigma_individual
            self.watch.note |= {"sensitivity": noise.sensitivity, "epsilon": budget}
        elif self.method != "plain":
            strategy = LightDP(strategy, make_plan(self.method, clients, task, start.size), wait=WAIT)
        strategy.start(
            grid=self.watch,
            initial_arrays=ArrayRecord([start]),
            num_rounds=rounds,
            timeout=timeout,
            evaluate_fn=lambda turn, arrays: self._tick(turn, arrays.to_numpy_ndarrays()[0]),
        )
        return self

    def _tick(self, turn: int, model: np.ndarray) -> None:
        self.times.append(time.perf_counter())
        self.cpu.append(cpu_seconds())
        self.trips.append(self.watch.trips)
        self.watch.weigh = turn + 1 == self.weigh
        self.models = [model]

    def _legacy(self, rounds: int, start: np.ndarray, clients: int, timeout: float) -> None:
        strategy = LegacyFedAvg(
            fraction_evaluate=0.0,
            min_available_clients=clients,
            min_fit_clients=clients,
            initial_parameters=ndarrays_to_parameters([start]),
            evaluate_fn=lambda turn, arrays, _config: self._tick(turn, arrays[0]),
        )
        old = LegacyContext(context=self.context, config=ServerConfig(num_rounds=rounds), strategy=strategy)
        secure = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.5, max_weight=1.0, timeout=timeout)
        DefaultWorkflow(fit_workflow=secure)(self.watch, old)


def cpu_seconds() -> float:
    """User and system time of this process and all that it has started and that run still."""
    parents, used = {}, {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(place.parent.name)], used[int(place.parent.name)] = (
            int(fields[1]),
            int(fields[11]) + int(fields[12]),
        )
    ours = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(used[process] for process in ours) / os.sysconf("SC_CLK_TCK")


def seconds(clients: int, blocks: int) -> dict[str, dict[str, Any]]:
    """Of each method, the seconds of its rounds and the processor seconds of its blocks, without each first round."""
    found: dict[str, tuple[list[float], list[float]]] = {method: ([], []) for method in METHODS}

    def block(method: str, watch: Watch, context: Context) -> None:
        done = Training(watch, context, method).run(3 if method == "secagg+" else 8, (PARAMETERS,))
        times, cpu = found[method]
        times += np.diff(done.times)[1:].tolist()
        cpu.append((done.cpu[-1] - done.cpu[1]) / (len(done.cpu) - 2))

    for _ in range(blocks):
        for method in METHODS:
            simulate(clients, partial(block, method))
    return {
        method: {
            "cpu": statistics.median(cpu),
            "seconds": statistics.median(times),
            "fastest": min(times),
            "slowest": max(times),
            "rounds": len(times),
        }
        for method, (times, cpu) in found.items()
    }


def simulate(clients: int, main: Callable[[Watch, Context], None]) -> None:
    """Run `main` on the server of a simulation, once all clients are there."""

    def begin(grid: Grid, context: Context) -> None:
        watch = Watch(grid)
        while len(list(watch.get_node_ids())) < clients:
            time.sleep(0.1)
        main(watch, context)

    client, server = ClientApp(mods=[method_mod]), ServerApp()
    client.train()(work)
    server.main()(begin)
    backend: dict[str, Any] = {
        "init_args": {"num_cpus": os.cpu_count() or 1, "log_to_driver": False, "logging_level": logging.ERROR},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server, client, clients, backend_config=backend)


def survived(watch: Watch, context: Context, method: str, trip: int) -> int:
    """The largest number of clients whose replies may be missing from a trip of the first round on."""
    clients = len(list(watch.get_node_ids()))
    if not is_right(Training(watch, context, method), clients, 0):
        raise RuntimeError(f"{method} does not give the mean, although nobody is lost")
    fine, broken = 0, clients
    while broken - fine > 1:
        count = (fine + broken) // 2
        watch.lose = (trip, count)
        if is_right(Training(watch, context, method), clients, count):
            fine = count
        else:
            broken = count
    watch.lose = (0, 0)
    return fine


def is_right(training: Training, clients: int, lost: int) -> bool:
    """Whether a round that loses so many clients ends with the mean of the others' constant."""
    try:
        training.run(1, (SMALL,), "survive", timeout=60.0)
    except Exception as error:  # noqa: BLE001  whatever stops a round, it did not survive
        print(f"  {training.method} with {lost} of {clients} lost: {error}", flush=True)
        return False
    [model] = training.models
    share = (clients - lost) / clients if training.method in {"exact", "repair"} else 1.0  # their divisor is fixed
    return bool(abs(model.mean() - STEP * share) <= 6 * model.std() / math.sqrt(SMALL) + STEP / 50)


def accuracy(watch: Watch, context: Context, method: str) -> float:
    """On images that no client has."""
    [weights] = Training(watch, context, method).run(ROUNDS, (65, 10), "digits").models
    x, y = (part[:TEST] for part in digits())
    return float(((x @ weights).argmax(1) == y.argmax(1)).mean())


def timed(clients: int, blocks: int) -> dict[str, Any]:
    """The times of one number of clients, by method."""
    rows, used = seconds(clients, blocks), make_plan("repair", clients, "constant", PARAMETERS)
    rows["repair"] |= {"masks": used.masks.kind, "mask_cost": used.mask_cost}
    for method, row in rows.items():
        row |= {"x_plain": row["seconds"] / rows["plain"]["seconds"], "x_cpu": row["cpu"] / rows["plain"]["cpu"]}
        print(f"  {clients} clients, {method}: {row}", flush=True)
    return rows


def complete(rows: dict[str, Any], clients: int, seeds: int) -> None:
    """Add trips, bytes, losses and accuracies of one number of clients to its times."""

    def others(watch: Watch, context: Context) -> None:
        for method, row in rows.items():
            done = Training(watch, context, method, weigh=2).run(2, (PARAMETERS,))
            row["trips"] = done.trips[2] - done.trips[1]
            row["bytes_up"] = statistics.mean(watch.bytes_up.values())
            before = done.trips[1] - row["trips"]  # keys
            row["lost"] = [survived(watch, context, method, trip + 1) for trip in range(before + row["trips"])]
            random = method not in {"plain", "secagg+"}
            row["accuracy"] = [accuracy(watch, context, method) for _ in range(seeds if random else 1)]
            print(f"  {clients} clients, {method}: {row}", flush=True)

    simulate(clients, others)


def claims(record: dict[str, Any]) -> dict[str, bool]:
    """What is claimed, and whether it holds in this record."""
    ours = [(rows[name], rows) for rows in record["clients"].values() for name in ("exact", "repair")]
    times = {
        f"at most {most:g} times plain FedAvg among {clients} clients": all(
            record["clients"][clients][name]["x_plain"] <= most for name in ("exact", "repair")
        )
        for clients, most in CLAIMS.items()
        if clients in record["clients"]
    }
    return {
        **times,
        "faster than SecAgg+": all(row["seconds"] < rows["secagg+"]["seconds"] for row, rows in ours),
        "fewer bytes up than plain FedAvg": all(
            row["bytes_up"] < rows["plain"]["bytes_up"] for row, rows in ours if "bytes_up" in row
        ),
    }


def show(record: dict[str, Any]) -> None:
    """Print a record."""
    where = record["conditions"]
    print(f"{where['cpu']}, {where['cores']} cores, load {where['load']} to {where['load_at_end']}")
    print(
        f"flwr {where['flwr']}, ray {where['ray']}; {record['parameters']:,} parameters; ε = {EPSILON:g}, δ = {DELTA:g}"
    )
    for clients, rows in record["clients"].items():
        print(f"\n{clients} clients")
        head = "".join(
            f"{name:>10}" for name in ("seconds", "× plain", "fastest", "slowest", "× cpu", "MB up", "trips")
        )
        print(f"{'':9}{head}{'lost, by trip':>16}{'accuracy':>10}")
        for name, row in rows.items():
            times = "".join(f"{row[key]:10.2f}" for key in ("seconds", "x_plain", "fastest", "slowest", "x_cpu"))
            if "lost" not in row:
                print(f"{name:9}{times}")
                continue
            lost = ", ".join(str(count) for count in row["lost"])
            right = statistics.mean(row["accuracy"])
            print(f"{name:9}{times}{row['bytes_up'] / 1e6:10.2f}{row['trips']:10}{lost:>16}{right:10.1%}")
    print(f"\nrepair: masks as {record.get('masks', 'gaussian')!r} asks")
    print("lost: exact and repair have a trip for keys, once, before the first round")
    for claim, holds in record["claims"].items():
        print(f"{claim}: {'yes' if holds else 'NO'}")


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--out", type=Path, help="also write the record here")
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 30])
    parser.add_argument("--blocks", type=int, default=3, help="turns that each method gets")
    parser.add_argument("--times", action="store_true", help="no bytes, losses and accuracies")
    parser.add_argument("--rest", type=Path, help="bytes, losses and accuracies, beside the times of this record")
    parser.add_argument("--seeds", type=int, default=3, help="trainings behind an accuracy")
    parser.add_argument("--masks", choices=("auto", "gaussian", "drawn"), default="auto", help="under repair")
    arguments = parser.parse_args()
    CHOSEN["masks"] = arguments.masks
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    record: dict[str, Any]
    if arguments.rest is None:
        load = os.getloadavg()[0]
        found = {str(clients): timed(clients, arguments.blocks) for clients in arguments.clients}
        versions = {name: version(name) for name in ("flwr", "ray")}
        loads = {"load": round(load, 2), "load_at_end": round(os.getloadavg()[0], 2)}
        facts: dict[str, Any] = {"parameters": PARAMETERS, "masks": arguments.masks, "clients": found}
        record = {"conditions": bench.conditions() | versions | loads} | facts
    else:
        record = json.loads(arguments.rest.read_text())
        CHOSEN["masks"] = record.get("masks", "gaussian")
    if not arguments.times:
        for clients, rows in record["clients"].items():
            complete(rows, int(clients), arguments.seeds)
    record["claims"] = claims(record)
    text = json.dumps(record, indent=2)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n")
    if arguments.json:
        print(text)
    else:
        show(record)


if __name__ == "__main__":
    main()
