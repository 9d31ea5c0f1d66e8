"""The run log of a training on Flower's nodes, as `lightdp run` writes it for a simulated one."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lightdp import gaussian
from lightdp.accountant import Odometer
from lightdp.client_set import ClientSet
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.planning import Plan
from lightdp.protocol import Aggregate
from lightdp.runlog import Ended, LogWriter, Round, Started, guaranteed

Late = Callable[[int], ClientSet]
Metrics = Mapping[str, Mapping[str, Any]]

_SETTINGS = (
    "unit", "adjacency", "clients", "colluders", "stragglers", "rounds", "epsilon", "delta", "clip", "reserve",
    "sampling_rate", "momentum", "grace",
)  # fmt: skip  # of a request, under the names that `lightdp run` has
_NAMES = {"accuracy": ("accuracy", "eval_acc", "eval_accuracy", "test_accuracy", "acc"), "loss": ("loss", "eval_loss")}
_PACKAGES = ("lightdp-fl", "flwr", "numpy", "scipy", "dp-accounting")


class Journal:
    """Writes the log of one start, a line for each round whose set is final.

    Under grace that is one round later. An upload that comes after its round's line was written is named in the line
    after that (`late_since`). ε is counted from what the log says and nothing else, so that `lightdp audit` finds the
    same.

    Args:
        path: the file, which must not exist yet.
        plan: the noise.

    Raises:
        ArgumentError: the file exists, or there is no such folder.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        if path.exists() or not path.parent.is_dir():
            raise ArgumentError(f"log must be a new file in a folder that exists, got log={str(path)!r}")
        self._path, self._plan = path, plan
        self._log: LogWriter | None = None
        self._began = time.monotonic()
        self._seen: list[tuple[ClientSet, ClientSet]] = []  # used and late clients, as logged
        self._odometer = Odometer(plan)
        self._results: list[Aggregate] = []  # of rounds with data
        self._finals: list[ClientSet] = []  # whom they used in the end
        self._metrics: list[Metrics] = []
        self._joined = ClientSet.none(plan.clients)  # in the first closing round

    def begin(self, length: int, more: Mapping[str, Any]) -> None:
        """Write the first line.

        Args:
            length: number of parameters.
            more: settings beside those of the plan.
        """
        asked = self._plan.request
        config = {name: getattr(asked, name) for name in _SETTINGS} | {"degree": self._plan.graph.degree}
        config |= {"scheme": asked.calibration, "fidelity": "protocol"} | dict(more)
        versions = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
        self._log = LogWriter(self._path)
        self._log.write(
            Started(
                config=config,
                plan=self._plan.to_dict(),
                versions=versions,
                commit=None,
                partition=None,
                parameters=length,
                device=None,
            )
        )

    def round(self, result: Aggregate) -> None:
        """Take in a round with data that has ended."""
        self._results.append(result)
        self._settle(result)

    def closing(self, result: Aggregate) -> None:
        """Take in a closing round: under grace the first one makes the set of the last round with data final."""
        if self._settle(result):
            self._joined = result.joined

    def _settle(self, closed: Aggregate) -> bool:
        """Whether the end of a round has made another set final."""
        final = closed.final is not None and len(self._finals) < len(self._results)
        if final and closed.final is not None:
            self._finals.append(closed.final)
        return final

    def write(self, late: Late, metrics: Metrics) -> None:
        """Write the lines of rounds whose sets have become final.

        Args:
            late: from the number of a round to clients whose uploads came too late for a sum.
            metrics: of the last round: "train", "evaluate" (on nodes) and "server", by name.
        """
        self._metrics.append(metrics)
        while len(self._seen) < len(self._finals):
            self._line(late)

    def end(self, late: Late, *, stopped: str | None, bytes_up: float | None, metrics: Metrics) -> None:
        """Write the last line.

        Args:
            late: as in `write`.
            stopped: "budget", "void" or "refused"; None if it came to its end.
            bytes_up: of an upload.
            metrics: as in `write`, of the final model.
        """
        plan, since, measured = self._plan, self._since(late), _measured(metrics)
        epsilon, joined = self._odometer.max_epsilon(), _joined(self._joined, plan)
        self._opened.write(
            Ended(
                accuracy=measured["accuracy"],
                epsilon=epsilon,
                mu=gaussian.mu(epsilon, plan.delta, up=True),
                epsilon_claimed=plan.budget,
                delta=plan.delta,
                unit=plan.unit,
                adjacency=plan.adjacency,
                rounds=len(self._seen),
                stopped=stopped,
                bytes_up=bytes_up,
                bytes_down=None,
                seconds=time.monotonic() - self._began,
                statement=guaranteed(plan, epsilon, self._seen, named=plan.request.calibration, unit=plan.unit),
                late_since=since,
                **joined,
            )
        )

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()

    def _line(self, late: Late) -> None:
        """Write the line of the next round."""
        plan, at, since = self._plan, len(self._seen), self._since(late)
        result, final = self._results[at], self._finals[at]
        used, unused = result.used, late(result.round)
        self._seen.append((final, unused))
        self._odometer.record(final, unused)
        came_late = (final - used) | unused
        lost = ~(used | came_late)
        epsilon = self._odometer.max_epsilon() if plan.gdp else None  # sampled, it takes a while
        self._opened.write(
            Round(
                round=at + 1,
                epsilon=epsilon,
                mu=None if epsilon is None else gaussian.mu(epsilon, plan.delta, up=True),
                used=len(used),
                late=len(came_late),
                lost=len(lost),
                late_clients=list(came_late),
                lost_clients=list(lost),
                late_since=since,
                **_joined(result.joined, plan),
                **self._noise(result),
                **_measured(self._metrics[at]),
            )
        )

    @property
    def _opened(self) -> LogWriter:
        if self._log is None:
            raise ProtocolError("a log begins with its first line")
        return self._log

    def _since(self, late: Late) -> dict[str, list[int]] | None:
        """Uploads that came since the lines of their rounds were written, which are counted from now on."""
        found = {}
        for t, (used, before) in enumerate(self._seen):
            if more := late(t) - before:
                found[str(t + 1)] = list(more)
                self._seen[t] = used, before | more
        if found:
            self._odometer = Odometer(self._plan)
            for used, unused in self._seen:
                self._odometer.record(used, unused)
        return found or None

    def _noise(self, result: Aggregate) -> dict[str, float | None]:
        """Standard deviations in a coordinate of the mean."""
        plan, uploads = self._plan, len(result.used) + len(result.joined)
        left = plan.residual_in_sum(uploads)
        if plan.grace and plan.gamma > 0:  # what two rounds share is not followed here
            lasting, residual = (plan.individual_in_sum(uploads) if plan.repairs else None), None
        else:
            lasting = plan.individual_in_sum(uploads) + (0.0 if plan.repairs else left)
            residual = left if plan.repairs else 0.0
        stds = {"noise_std": lasting, "residual_std": residual}
        return {name: None if each is None else math.sqrt(each) / plan.clients for name, each in stds.items()}


def _joined(clients: ClientSet, plan: Plan) -> dict[str, Any]:
    """What a line says of uploads of the round before that are in its sum; nothing without grace."""
    return {"joined": len(clients), "joined_clients": list(clients)} if plan.grace else {}


def _measured(metrics: Metrics) -> dict[str, Any]:
    """Accuracy and loss on the server or else on the nodes, and all metrics that JSON can hold."""
    kept = {
        where: {name: value for name, value in found.items() if _finite(value) and not name.startswith("lightdp-")}
        for where, found in metrics.items()
    }
    result: dict[str, Any] = {"metrics": {where: found for where, found in kept.items() if found} or None}
    for wanted, names in _NAMES.items():
        values = [kept.get(where, {}).get(name) for where in ("server", "evaluate") for name in names]
        numbers = [float(each) for each in values if isinstance(each, int | float)]
        result[wanted] = numbers[0] if numbers and (wanted == "loss" or 0 <= numbers[0] <= 1) else None
    return result


def _finite(value: object) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(each, int | float) and math.isfinite(each) for each in values)
