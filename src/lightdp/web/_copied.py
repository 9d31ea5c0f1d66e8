"""A plan's settings as text to paste: a command, Python, and an app of Flower."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from lightdp.planning import Plan, Request

_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Request)}


def texts(asked: Mapping[str, Any], plan: Plan) -> dict[str, str | None]:
    """The three texts; None for Flower where `lightdp.flower` does not deploy such a plan.

    >>> import lightdp
    >>> asked = {"clients": 20, "colluders": 4, "stragglers": 4, "rounds": 60, "epsilon": 3.0, "delta": 1e-05}
    >>> print(texts(asked, lightdp.plan(**asked))["command"])
    lightdp plan --clients 20 --colluders 4 --stragglers 4 --rounds 60 --epsilon 3.0 --delta 1e-05

    Args:
        asked: settings of `lightdp.plan`.
        plan: what it made of them.
    """
    given = [name for name in _DEFAULTS if name in asked and asked[name] != _DEFAULTS[name]]
    flags = " ".join(f"--{name.replace('_', '-')} {shlex.quote(str(asked[name]))}" for name in given)
    return {
        "command": f"lightdp plan {flags}",
        "python": f"import lightdp\n\n{_call({name: asked[name] for name in given})}print(plan)\n",
        "flower": _flower({name: asked[name] for name in given}, plan) if plan.deployable else None,
    }


def _call(given: Mapping[str, Any]) -> str:
    return "plan = lightdp.plan(\n" + "".join(f"    {name}={value!r},\n" for name, value in given.items()) + ")\n"


def _flower(given: Mapping[str, Any], plan: Plan) -> str:
    """Both sides of an app; a plan for Flower names its unit, and FedAvg has no momentum."""
    mod = "record_mod" if plan.unit == "record" else "mod"
    share = "" if plan.request.population is None else f", fraction_train={plan.clients / plan.request.members!r}"
    return f"""\
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import lightdp
import lightdp.flower

{_call({**given, "unit": plan.unit, "momentum": 0.0})}
# client_app.py
app = ClientApp(mods=[lightdp.flower.{mod}])

# server_app.py
inner = FedAvg(min_available_nodes={plan.request.members}, fraction_evaluate=0.0{share})
strategy = lightdp.flower.LightDP(inner, plan, log="run.jsonl")
"""
