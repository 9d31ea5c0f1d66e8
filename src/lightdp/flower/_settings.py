"""What protects a node: the limits that its operator sets, which a server can tighten and never loosen."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from flwr.app import Context

from lightdp._validate import choice, integer, positive, probability
from lightdp.errors import ArgumentError, ProtocolError
from lightdp.keys import Identity, Pins
from lightdp.keys.identity import NAME
from lightdp.planning import Request
from lightdp.planning import Unit as UnitName
from lightdp.sampling import Adjacency

T = TypeVar("T")

KEY = "lightdp"  # of our records in messages and contexts, and before a hyphen in configurations
LOG = logging.getLogger("flwr.lightdp")

_SIMULATION = f"{KEY}-simulation"
_ENGINE = {"partition-id", "num-partitions"}  # the node_config of Flower's simulation engine
_FILES = ("-state", "-anchor", "-identity", "-pins")
_PATH = re.compile(r"(?<![\w>])[~.]{0,2}/[^\s'\",;]+")  # none of ours, such as that of a system's error
_ROUNDS = 10_000  # the most of a plan, unless the node says otherwise
_MASKS = ("any", "gaussian")
_ROUNDING = 1e-9  # numbers that were written down and read again


def _text(wanted: str, pattern: re.Pattern[str], made: Callable[[str], T], key: str, value: object) -> T:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ArgumentError(f"{key} must be {wanted}, got {key}={value!r}")
    return made(value)


def _split(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip() != "")


_path = partial(_text, "a path", re.compile("(?s).+"), lambda text: Path(text).expanduser())
_name = partial(_text, "1 to 64 letters, digits or ._@+- (not first)", NAME, str)
_names = partial(_text, "names with commas between them", re.compile("(?s).*"), _split)
_count = partial(integer, low=0)


def _loaded(key: str, value: object, *, kind: type[Identity | Pins]) -> Identity | Pins:
    try:
        return kind.load(_path(key, value))
    except OSError as error:
        raise ArgumentError(f"lightdp-identity and lightdp-pins must name files that can be read: {error}") from None


def _rate(key: str, value: object) -> float:
    if positive(key, value) > 1:
        raise ArgumentError(f"{key} must be in (0, 1], got {key}={value!r}")
    return positive(key, value)


def _clip(key: str, value: object) -> float:
    if not 1e-100 <= positive(key, value) <= 1e100:
        raise ArgumentError(f"{key} must be in [1e-100, 1e+100], got {key}={value!r}")
    return positive(key, value)


def _stricter(own: str | None, asked: str) -> str | None:
    """Of two values of `masks`; a server must not say for the operator that "any" are fine."""
    return asked if asked == "gaussian" else own


def _setting(
    reader: Callable[[str, Any], Any],
    default: Any = None,  # noqa: ANN401  as `field`
    *,
    tighter: Callable[[Any, Any], Any] | None = None,
    needed: bool = False,
) -> Any:  # noqa: ANN401  as `field`
    """A setting: the function that reads its value, the tighter of two values, and whether a node must have it."""
    return field(default=default, metadata={"reader": reader, "tighter": tighter, "needed": needed})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The `lightdp-...` values of `node_config`, tightened by `run_config`, which comes from the server.

    Formal guarantee: no value of `run_config` makes a node accept, send or forget anything that it would not without
    it. Limits and allowed metrics it may tighten; other keys are refused there. The exception is a simulation, which
    has no operator: `lightdp-simulation = true` in `run_config` makes all of them count, and is believed only in a
    worker of Flower's simulation engine whose `node_config` is the engine's.

    An invalid value raises `ArgumentError`, and so does an unknown key that begins with "lightdp": a misspelt limit
    must not be a missing one.

    Attributes:
        unit: the only unit of plans that this node accepts.
        adjacency: the only adjacency of such plans; None for both.
        max_epsilon: largest ε of a plan that this node accepts.
        max_delta: largest δ of such a plan.
        min_colluders: least number of colluders that a plan must withstand.
        max_stragglers: largest number of stragglers of a plan; where they are many, little of the noise is shared by
            clients that answer, and much of the budget is kept for lies.
        masks: "gaussian" refuses plans whose masks may be drawn, in any of their rosters: these ask something of the
            app that no mod can check (`mod`). "any" accepts both kinds, and so does None, with a warning.
        max_rounds: largest number of rounds of a plan, which bounds what it costs to compute it.
        total_epsilon: ε of everything that this node has sent, over all runs, at `total_delta`. It needs a `state`.
        total_delta: the δ of `total_epsilon`.
        state: the state file of this node, which survives a restart; a folder gets one for each name. Only a simulation
            goes without: a round of a process that was killed would be free, and could be asked for again.
        anchor: a second file, where backups of `state` do not reach, that keeps the number of the newest state.
        identity: the long-lived Ed25519 key of the node, from a file; by default a new key for each run.
        pins: the identities of peers, from a file.
        name: the name of the node in the roster; by default made from its id.
        allow_metrics: names of the metrics that may leave, unprotected.
        record_clip: for unit "record", the L2 norm to which `RecordSum` clips each record's part of the update. The
            noise fits the plan's `clip`, which the server chooses, so that must not be smaller.
        record_rate: for unit "record", the probability with which the app puts a record into a (Poisson) batch; the
            plan's must not be smaller.
    """

    unit: str | None = _setting(partial(choice, options=get_args(UnitName)), needed=True)
    adjacency: str | None = _setting(partial(choice, options=get_args(Adjacency)))
    max_epsilon: float = _setting(positive, math.inf, tighter=min, needed=True)
    max_delta: float = _setting(probability, 1.0, tighter=min, needed=True)
    min_colluders: int = _setting(_count, 0, tighter=max)
    max_stragglers: float = _setting(_count, math.inf, tighter=min)
    masks: str | None = _setting(partial(choice, options=_MASKS), tighter=_stricter)
    max_rounds: int = _setting(partial(integer, low=1), _ROUNDS, tighter=min)
    total_epsilon: float | None = _setting(positive)
    total_delta: float | None = _setting(probability)
    state: Path | None = _setting(_path, needed=True)
    anchor: Path | None = _setting(_path)
    identity: Identity | None = _setting(partial(_loaded, kind=Identity))
    pins: Pins | None = _setting(partial(_loaded, kind=Pins))
    name: str = _setting(_name)
    allow_metrics: frozenset[str] = _setting(_names, frozenset(), tighter=frozenset.intersection)
    record_clip: float | None = _setting(_clip)
    record_rate: float = _setting(_rate, 1.0)

    @classmethod
    def of(cls, context: Context) -> Settings:
        """The present settings of a node."""
        known = {f"{KEY}-{each.name.replace('_', '-')}": each for each in fields(cls)}
        own, run = _ours(context.node_config), _ours(context.run_config)
        simulated = _simulated(context, run.pop(_SIMULATION, False))
        if simulated:
            own, run = run, {}
        for where, config in (("node_config", own), ("run_config", run)):
            if unknown := [key for key in config if key not in known]:
                raise ArgumentError(f"{where} must not have {unknown}; known are {', '.join(known)}")
        if foreign := [key for key in run if known[key].metadata["tighter"] is None]:
            raise ArgumentError(
                f"run_config must not have {foreign}: they belong in node_config, by the node's operator"
            )
        missing = [key for key, each in known.items() if each.metadata["needed"] and key not in own]
        if missing and not simulated:
            hint = f"; a run in Flower's simulation engine says {_SIMULATION}=true in run_config instead"
            raise ArgumentError(f"node_config must have {', '.join(missing)}, which operators set{hint}")
        read = {known[key].name: known[key].metadata["reader"](key, value) for key, value in own.items()}
        for key, value in run.items():
            each = known[key]
            asked = each.metadata["reader"](key, value)
            read[each.name] = each.metadata["tighter"](read.get(each.name, each.default), asked)
        return cls(**_placed(read, unnamed(context)))

    def check(self, plan: Request) -> None:
        """Refuse a request for a plan beyond the limits of this node, its total aside, before the plan is computed.

        Raises:
            ProtocolError: the plan is beyond a limit, which the message names.
        """
        for what, named, wanted in (
            ("unit", plan.unit, self.unit),
            ("adjacency", plan.adjacency, self.adjacency),
        ):
            if wanted is not None and named != wanted:
                raise ProtocolError(f"the plan's {what} is {named!r}, and this node accepts lightdp-{what}={wanted!r}")
        if self.masks == "gaussian" and plan.masks != "gaussian" and plan.undrawable is None:
            raise ProtocolError(
                f"the plan's masks are {plan.masks!r}, and this node accepts lightdp-masks='gaussian': plan with "
                "masks='gaussian'"
            )
        limits: list[tuple[str, float, str, str, float]] = [
            ("epsilon", plan.epsilon, "above", "lightdp-max-epsilon", self.max_epsilon),
            ("delta", plan.delta, "above", "lightdp-max-delta", self.max_delta),
            ("colluders", plan.colluders, "below", "lightdp-min-colluders", self.min_colluders),
            ("stragglers", plan.stragglers, "above", "lightdp-max-stragglers", self.max_stragglers),
            ("rounds", plan.rounds, "above", "lightdp-max-rounds", self.max_rounds),
        ]
        if plan.unit == "record":
            if self.record_clip is None:
                raise ProtocolError(
                    "the plan protects records: lightdp-record-clip must say to what norm each is clipped"
                )
            limits += [
                ("clip", plan.clip, "below", "lightdp-record-clip", self.record_clip),
                ("sampling_rate", plan.sampling_rate, "below", "lightdp-record-rate", self.record_rate),
            ]
        for what, value, side, key, limit in limits:
            if value > limit if side == "above" else value < limit * (1 - _ROUNDING):
                raise ProtocolError(f"the plan's {what}={value:g} is {side} {key}={limit:g}")


def unnamed(context: Context) -> str:
    """The name of a node whose operator gives it none; it changes with the node's id."""
    return f"node-{context.node_id}"


def _ours(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that are, or look like, ours: one that is misspelt must not be overlooked."""
    return {key: value for key, value in config.items() if key.lower().startswith(KEY)}


def without_paths(text: str, context: Context) -> str:
    """A message for the server, with the names of keys in the place of the paths of this node's files."""
    for key, value in _ours(context.node_config).items():
        if isinstance(value, str) and key.endswith(_FILES):
            for path in (os.path.abspath(os.path.expanduser(value)), os.path.expanduser(value), value):  # noqa: PTH100, PTH111  they never raise
                text = re.sub(rf"(?<![\w./-]){re.escape(path)}(?![\w-])", f"<{key}>", text)
    return _PATH.sub("<path>", text)


def _simulated(context: Context, asked: object) -> bool:
    """Whether `run_config` asks for a simulation; raises if it does on a node that is none.

    A server decides `run_config`, so it must not be what tells a simulated node from a real one. The engine gives its
    nodes these two keys and no other, and runs them in workers of Ray; a SuperNode does neither.
    """
    if not isinstance(asked, bool):
        raise ArgumentError(f"{_SIMULATION} must be true or false, got {_SIMULATION}={asked!r}")
    if asked and not (set(context.node_config) == _ENGINE and _in_ray()):
        raise ArgumentError(
            f"{_SIMULATION} must not be true on a node outside Flower's simulation engine: its operator sets what "
            "protects it in node_config"
        )
    return asked


def _in_ray() -> bool:
    ray = sys.modules.get("ray")  # a worker has imported it
    return ray is not None and bool(ray.is_initialized())


def _placed(read: dict[str, Any], name: str) -> dict[str, Any]:
    """Settings with a name and, if `state` is a folder, the file in it; refuses totals that could be lost."""
    if ("total_epsilon" in read) != ("total_delta" in read):
        raise ArgumentError("lightdp-total-epsilon and lightdp-total-delta must be set together, got one of them")
    folder = "state" in read and read["state"].is_dir()
    # what was spent must be found again: the node's id, which the server gives, must not lead to another file
    if "total_epsilon" in read and ("state" not in read or (folder and "name" not in read)):
        raise ArgumentError(
            "lightdp-total-epsilon needs lightdp-state, which remembers what was spent: a file, or a folder with "
            "lightdp-name"
        )
    if "anchor" in read and "state" not in read:
        raise ArgumentError("lightdp-anchor needs lightdp-state, whose newest number it keeps")
    read.setdefault("name", name)
    if folder:
        read["state"] /= f"{read['name']}.json"
    return read
