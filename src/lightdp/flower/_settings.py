"""What goes together: the limits of a node, plans as they travel, and the strategies that a plan allows."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import Context
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, FedAvgM, Strategy

from lightdp._validate import integer, positive, probability
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.keys import Identity, Pins
from lightdp.keys.identity import NAME
from lightdp.planning import Plan

T = TypeVar("T")

KEY = "lightdp"  # of our records in messages and contexts, and before a hyphen in configurations
LOG = logging.getLogger("flwr.lightdp")

_ROUNDING = 1e-9  # numbers that were written down and read again
_LINEAR = (FedAvg.aggregate_train, FedAvgM.aggregate_train)  # FedProx is FedAvg for the server
_SEPARATE = (
    strategies.Bulyan, strategies.FedMedian, strategies.FedTrimmedAvg, strategies.FedXgbBagging,
    strategies.FedXgbCyclic, strategies.Krum, strategies.MultiKrum, strategies.QFedAvg,
    strategies.DifferentialPrivacyClientSideAdaptiveClipping, strategies.DifferentialPrivacyClientSideFixedClipping,
    strategies.DifferentialPrivacyServerSideAdaptiveClipping, strategies.DifferentialPrivacyServerSideFixedClipping,
)  # fmt: skip  # they need each client's update for itself


def _text(wanted: str, pattern: re.Pattern[str], made: Callable[[str], T], key: str, value: object) -> T:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ArgumentError(f"{key} must be {wanted}, got {key}={value!r}")
    return made(value)


def _split(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip() != "")


_path = partial(_text, "a path", re.compile("(?s).+"), lambda text: Path(text).expanduser())
_name = partial(_text, "1 to 64 letters, digits or ._@+- (not first)", NAME, str)
_names = partial(_text, "names with commas between them", re.compile("(?s).*"), _split)


def _loaded(key: str, value: object, *, kind: type[Identity | Pins]) -> Identity | Pins:
    try:
        return kind.load(_path(key, value))
    except OSError as error:
        raise ArgumentError(f"lightdp-identity and lightdp-pins must name files that can be read: {error}") from None


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
        state: the state file of this node, which survives a restart; a folder gets one for each name.
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
        own, known = context.node_config, {f"{KEY}-{each.name.replace('_', '-')}": each for each in fields(cls)}
        unknown = [key for key in own if key.startswith(f"{KEY}-") and key not in known]
        if unknown:
            raise ArgumentError(f"node_config must not have {unknown}; known are {', '.join(known)}")
        given = {**context.run_config, **own}
        read = {each.name: each.metadata["reader"](key, given[key]) for key, each in known.items() if key in given}
        read.setdefault("name", f"node-{context.node_id}")
        folder = "state" in read and read["state"].is_dir()
        # what was spent must be found again: neither the run's config nor the node's id may lead to another file
        fixed = "lightdp-state" in own and ("lightdp-name" in own or not folder)
        if "total_epsilon" in read and not fixed:
            raise ArgumentError(
                "lightdp-total-epsilon needs lightdp-state in node_config, which remembers what was spent: a file, or "
                "a folder with lightdp-name"
            )
        if folder:
            read["state"] /= f"{read['name']}.json"
        return cls(**read)

    def check(self, plan: Plan, *, spent: float = 0.0) -> None:
        """Refuse a plan beyond the limits of this node.

        Args:
            plan: to be checked.
            spent: ε of all earlier plans together.

        Raises:
            ProtocolError: the plan is beyond a limit, which the message names.
        """
        limits: list[tuple[str, float, str, str, float]] = [
            ("epsilon", plan.budget, "above", "lightdp-max-epsilon", self.max_epsilon),
            ("delta", plan.delta, "above", "lightdp-max-delta", self.max_delta),
            ("colluders", plan.colluders, "below", "lightdp-min-colluders", self.min_colluders),
        ]
        if plan.unit == "record":
            if self.record_clip is None:
                clip = "lightdp-record-clip must say to what norm"
                raise ProtocolError(f"the plan protects records, and only the app can clip them: {clip}")
            limits += [
                ("clip", plan.clip, "below", "the app's, lightdp-record-clip", self.record_clip),
                ("sampling_rate", plan.sampling_rate, "below", "lightdp-record-rate", self.record_rate),
            ]
        for what, value, side, key, limit in limits:
            if value > limit if side == "above" else value < limit * (1 - _ROUNDING):
                raise ProtocolError(f"the plan's {what}={value:g} is {side} {key}={limit:g}")
        if spent + plan.budget > self.total_epsilon:
            after = f"after {spent:g} spent is above lightdp-total-epsilon={self.total_epsilon:g}"
            raise ProtocolError(f"the plan's epsilon={plan.budget:g} {after}")


@lru_cache(maxsize=8)
def planned(text: str) -> Plan:
    """The plan of a request that came from the server.

    A Flower server can read replies that come too late, so no plan may assume that they stay unseen, whatever its
    calibration: under late="unseen" a client counts no round that was announced as too late.
    """
    plan = Plan.from_json(text)
    if plan.late == "unseen":
        raise ProtocolError("the plan says late='unseen', but Flower keeps replies that come too late")
    return plan


def refuse(strategy: Strategy, plan: Plan, *, linear: bool) -> None:
    """Raise if strategy and plan cannot work together; `linear` as for `LightDP`."""
    name = type(strategy).__name__
    if isinstance(strategy, _SEPARATE):
        raise ArgumentError(f"strategy must not need each client's own update, which lightdp hides, got {name}")
    if plan.repairs and not linear and type(strategy).aggregate_train not in _LINEAR:
        raise ArgumentError(
            f"strategy must be linear for calibration='repair', got {name}: noise that stragglers leave in a round is "
            "taken out in the next, which a non-linear update would not undo (R3); use calibration='exact', or say "
            "linear=True if it is linear"
        )
    if (fraction := getattr(strategy, "fraction_train", 1.0)) != 1.0:
        raise ArgumentError(
            f"fraction_train must be 1, got fraction_train={fraction}: noise cancels only if every client is asked"
        )
    for bound in ("min_train_nodes", "min_available_nodes"):
        if (asked := getattr(strategy, bound, 0)) > plan.clients:
            raise ArgumentError(f"{bound} must be at most the plan's {plan.clients} clients, got {bound}={asked}")
    if type(strategy).start is not Strategy.start:
        LOG.warning("lightdp: %s has a start of its own, which is not used", name)
    if planned(plan.to_json()).digest() != plan.digest():
        raise ArgumentError("plan must be as lightdp.plan makes it")
