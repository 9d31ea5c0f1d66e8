"""What a node's operator allows, read anew for each message, and plans as they travel."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightdp._validate import integer, positive, probability
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.keys import Identity, Pins
from lightdp.keys.identity import NAME
from lightdp.planning import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from flwr.app import Context

_PREFIX = "lightdp-"
_ROUNDING = 1e-9  # numbers that were written down and read again


def _path(key: str, value: object) -> Path:
    if not isinstance(value, str) or value == "":
        raise ArgumentError(f"{key} must be a path, got {key}={value!r}")
    return Path(value).expanduser()


def _name(key: str, value: object) -> str:
    if not isinstance(value, str) or NAME.fullmatch(value) is None:
        raise ArgumentError(f"{key} must be 1 to 64 letters, digits or ._@+- (not first), got {key}={value!r}")
    return value


def _names(key: str, value: object) -> frozenset[str]:
    if not isinstance(value, str):
        raise ArgumentError(f"{key} must be names with commas between them, got {key}={value!r}")
    return frozenset(part.strip() for part in value.split(",") if part.strip() != "")


def _rate(key: str, value: object) -> float:
    if positive(key, value) > 1:
        raise ArgumentError(f"{key} must be in (0, 1], got {key}={value!r}")
    return positive(key, value)


def _count(key: str, value: object) -> int:
    return integer(key, value, 0)


def _read_by(reader: Callable[[str, Any], Any], default: Any = None) -> Any:  # noqa: ANN401  as `field`
    """A setting, and what makes its value of what a configuration holds."""
    return field(default=default, metadata={"reader": reader})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The `lightdp-...` values of `node_config`, or where it says nothing of `run_config`.

    A value that makes no sense raises `ArgumentError`, and so does an unknown name in `node_config`: a limit that is
    misspelt must not be a limit that is missing.

    Attributes:
        max_epsilon: largest ε of a plan that this node accepts.
        max_delta: largest δ.
        min_colluders: least number of colluders that a plan must withstand.
        total_epsilon: largest sum of the ε of all plans under which this node has sent something; needs a `state`
            of which no server decides where it is.
        state: where the state lives: a file, or a folder for a file of each node. It survives the node's restart.
        identity: file of the node's long-lived Ed25519 key; by default a new key for each run.
        pins: file of the identities of peers.
        name: the node's name in the roster; by default made from its id.
        allow_metrics: names of metrics that may leave, unprotected, with commas between them.
        record_clip: for unit "record", the L2 norm to which the app itself clips each record's part of its update. The
            noise fits the plan's `clip`, which the server chooses, so that it must not be below this.
        record_rate: for unit "record", the probability with which the app puts a record into a batch (Poisson); the
            plan's must not be below it.
    """

    max_epsilon: float | None = _read_by(positive)
    max_delta: float | None = _read_by(probability)
    min_colluders: int = _read_by(_count, 0)
    total_epsilon: float | None = _read_by(positive)
    state: Path | None = _read_by(_path)
    identity: Path | None = _read_by(_path)
    pins: Path | None = _read_by(_path)
    name: str = _read_by(_name)
    allow_metrics: frozenset[str] = _read_by(_names, frozenset())
    record_clip: float | None = _read_by(positive)
    record_rate: float = _read_by(_rate, 1.0)

    @classmethod
    def of(cls, context: Context) -> Settings:
        """The settings of this node, now."""
        readers = {_PREFIX + each.name.replace("_", "-"): each for each in fields(cls)}
        unknown = [key for key in context.node_config if key.startswith(_PREFIX) and key not in readers]
        if unknown:
            raise ArgumentError(f"node_config must not have {unknown}; known are {', '.join(readers)}")
        values: dict[str, Any] = {"name": f"node-{context.node_id}"}
        for key, each in readers.items():
            for config in (context.node_config, context.run_config):
                if key in config:
                    values[each.name] = each.metadata["reader"](key, config[key])
                    break
        result = cls(**values)
        if result.total_epsilon is not None:
            _refuse_forgetting(context, result.state)
        return result

    def check(self, plan: Plan, *, spent: float = 0.0) -> None:
        """Refuse a plan beyond this node's limits, after plans of `spent` in all."""
        if self.max_epsilon is not None and plan.budget > self.max_epsilon:
            raise ProtocolError(f"the plan's epsilon={plan.budget:g} is above lightdp-max-epsilon={self.max_epsilon:g}")
        if self.max_delta is not None and plan.delta > self.max_delta:
            raise ProtocolError(f"the plan's delta={plan.delta:g} is above lightdp-max-delta={self.max_delta:g}")
        if plan.colluders < self.min_colluders:
            raise ProtocolError(
                f"the plan's colluders={plan.colluders} is below lightdp-min-colluders={self.min_colluders}"
            )
        if self.total_epsilon is not None and spent + plan.budget > self.total_epsilon:
            raise ProtocolError(
                f"the plan's epsilon={plan.budget:g} after {spent:g} spent is above "
                f"lightdp-total-epsilon={self.total_epsilon:g}"
            )
        if plan.unit == "record":
            self._check_records(plan)
        refuse_unseen(plan)

    def _check_records(self, plan: Plan) -> None:
        if self.record_clip is None:
            raise ProtocolError(
                "the plan protects records, and only the app can clip them: lightdp-record-clip must say to what norm"
            )
        if plan.clip < self.record_clip * (1 - _ROUNDING):
            raise ProtocolError(
                f"the plan's clip={plan.clip:g} is below the app's, lightdp-record-clip={self.record_clip:g}"
            )
        if plan.sampling_rate < self.record_rate * (1 - _ROUNDING):
            raise ProtocolError(
                f"the plan's sampling_rate={plan.sampling_rate:g} is below lightdp-record-rate={self.record_rate:g}"
            )

    def state_file(self) -> Path | None:
        """The file of this node's state."""
        if self.state is None or not self.state.is_dir():
            return self.state
        return self.state / f"{self.name}.json"

    def keys(self) -> dict[str, Any]:
        """The node's long-lived key and the pins of its peers, as `Client` takes them."""
        try:
            return {
                "identity": None if self.identity is None else Identity.load(self.identity),
                "pins": None if self.pins is None else Pins.load(self.pins),
            }
        except OSError as error:
            raise ArgumentError(
                f"lightdp-identity and lightdp-pins must name files that can be read: {error}"
            ) from None


def _refuse_forgetting(context: Context, state: Path | None) -> None:
    """What was spent must be found again: neither a run's config nor a node's id may lead to another file."""
    own = context.node_config
    if state is None or "lightdp-state" not in own or (state.is_dir() and "lightdp-name" not in own):
        raise ArgumentError(
            "lightdp-total-epsilon needs lightdp-state in node_config, which remembers what was spent: a file, or a "
            "folder with lightdp-name"
        )


def refuse_unseen(plan: Plan) -> None:
    """A Flower server can read replies that come too late, so that no plan may rest on their not being seen.

    Whatever the calibration: under late="unseen" a client counts no round of which it is told that it came too late.
    """
    if plan.late == "unseen":
        raise ProtocolError("the plan says late='unseen', but Flower keeps replies that come too late")


@lru_cache(maxsize=8)
def planned(text: str) -> Plan:
    """The plan of a request that came from the server."""
    return Plan.from_json(text)
