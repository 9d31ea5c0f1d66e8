"""The limits that the operator of a node sets, read anew for each message, and plans as they travel."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
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


def _loaded(key: str, value: object, *, kind: type[Identity | Pins]) -> Identity | Pins:
    try:
        return kind.load(_path(key, value))
    except OSError as error:
        raise ArgumentError(f"lightdp-identity and lightdp-pins must name files that can be read: {error}") from None


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


def _read_by(reader: Callable[[str, Any], Any], default: Any = None) -> Any:  # noqa: ANN401  as `field`
    """A setting, with the function that reads its value from a configuration."""
    return field(default=default, metadata={"reader": reader})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The `lightdp-...` values of `node_config`; `run_config` supplies those that it does not set.

    An invalid value raises `ArgumentError`, and so does an unknown `lightdp-...` key in `node_config`: a misspelt
    limit must not be a missing one.

    Attributes:
        max_epsilon: largest ε of a plan that this node accepts.
        max_delta: largest δ of such a plan.
        min_colluders: least number of colluders that a plan must withstand.
        total_epsilon: largest sum of the ε of all plans under which this node has sent something. It needs a `state`
            whose place no server decides.
        state: the state file, or a folder with one state file for each node. It survives a restart of the node.
        identity: the long-lived Ed25519 key of the node, from a file; by default a new key for each run.
        pins: the identities of peers, from a file.
        name: the name of the node in the roster; by default made from its id.
        allow_metrics: names of the metrics that may leave, unprotected.
        record_clip: for unit "record", the L2 norm to which the app clips each record's part of its update. The noise
            fits the plan's `clip`, which the server chooses, so that must not be smaller.
        record_rate: for unit "record", the probability with which the app puts a record into a (Poisson) batch; the
            plan's must not be smaller.
    """

    max_epsilon: float = _read_by(positive, math.inf)
    max_delta: float = _read_by(probability, 1.0)
    min_colluders: int = _read_by(partial(integer, low=0), 0)
    total_epsilon: float = _read_by(positive, math.inf)
    state: Path | None = _read_by(_path)
    identity: Identity | None = _read_by(partial(_loaded, kind=Identity))
    pins: Pins | None = _read_by(partial(_loaded, kind=Pins))
    name: str = _read_by(_name)
    allow_metrics: frozenset[str] = _read_by(_names, frozenset())
    record_clip: float | None = _read_by(positive)
    record_rate: float = _read_by(_rate, 1.0)

    @classmethod
    def of(cls, context: Context) -> Settings:
        """The present settings of a node."""
        own, known = context.node_config, {_PREFIX + each.name.replace("_", "-"): each for each in fields(cls)}
        unknown = [key for key in own if key.startswith(_PREFIX) and key not in known]
        if unknown:
            raise ArgumentError(f"node_config must not have {unknown}; known are {', '.join(known)}")
        given = {**context.run_config, **own}
        read = {each.name: each.metadata["reader"](key, given[key]) for key, each in known.items() if key in given}
        result = cls(**({"name": f"node-{context.node_id}"} | read))
        # what was spent must be found again: neither the run's config nor the node's id may lead to another file
        fixed = "lightdp-state" in own and ("lightdp-name" in own or not read["state"].is_dir())
        if "total_epsilon" in read and not fixed:
            raise ArgumentError(
                "lightdp-total-epsilon needs lightdp-state in node_config, which remembers what was spent: a file, or "
                "a folder with lightdp-name"
            )
        return result

    def check(self, plan: Plan, *, spent: float = 0.0) -> None:
        """Refuse a plan beyond the limits of this node.

        Args:
            plan: to be checked.
            spent: ε of all earlier plans together.

        Raises:
            ProtocolError: the plan is beyond a limit, which the message names.
        """
        most = [
            ("epsilon", plan.budget, "max-epsilon", self.max_epsilon),
            ("delta", plan.delta, "max-delta", self.max_delta),
        ]
        least: list[tuple[str, float, str, float]] = [
            ("colluders", plan.colluders, "lightdp-min-colluders", self.min_colluders)]
        if plan.unit == "record":
            if self.record_clip is None:
                raise ProtocolError(
                    "the plan protects records, and only the app can clip them: lightdp-record-clip must say to what "
                    "norm"
                )
            least += [
                ("clip", plan.clip, "the app's, lightdp-record-clip", self.record_clip),
                ("sampling_rate", plan.sampling_rate, "lightdp-record-rate", self.record_rate),
            ]
        for what, value, key, limit in most:
            if value > limit:
                raise ProtocolError(f"the plan's {what}={value:g} is above lightdp-{key}={limit:g}")
        for what, value, key, limit in least:
            if value < limit * (1 - _ROUNDING):
                raise ProtocolError(f"the plan's {what}={value:g} is below {key}={limit:g}")
        if spent + plan.budget > self.total_epsilon:
            after = f"after {spent:g} spent is above lightdp-total-epsilon={self.total_epsilon:g}"
            raise ProtocolError(f"the plan's epsilon={plan.budget:g} {after}")

    def state_file(self) -> Path | None:
        """The state file of this node."""
        if self.state is None or not self.state.is_dir():
            return self.state
        return self.state / f"{self.name}.json"


@lru_cache(maxsize=8)
def planned(text: str) -> Plan:
    """The plan of a request that came from the server.

    A Flower server can read replies that come too late, so no plan may assume that they stay unseen, whatever its
    calibration: under late="unseen" a client counts no round of which it is told that it came too late.
    """
    plan = Plan.from_json(text)
    if plan.late == "unseen":
        raise ProtocolError("the plan says late='unseen', but Flower keeps replies that come too late")
    return plan
