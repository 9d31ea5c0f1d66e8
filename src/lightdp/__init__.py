"""Federated learning that stays private against its own server.

>>> import lightdp
>>> plan = lightdp.plan(clients=50, colluders=10, stragglers=10, rounds=150, epsilon=3, delta=1e-5)
>>> round(plan.noise_multiplier, 2)
17.03
>>> plan.epsilon() <= 3
True

The names below are the promised API: they change only with a note in CHANGELOG. Each is imported when it is first
used, so `import lightdp` loads neither numpy nor scipy, torch or flwr. Everything else is internal, whether or not
its name begins with an underscore, and may change without notice; what promised functions return is promised with
them, as their docstrings describe it.

| name | what it is | extra |
| --- | --- | --- |
| `plan`, `Request`, `Plan` | how much noise clients must add, and what it guarantees | |
| `plan_per_client` | the same for clients that differ in budget and reliability | |
| `Odometer` | what a training has cost each client so far | |
| `audit`, `Audit` | what real uploads of a plan reveal, measured on their bytes | |
| `Client`, `Server`, `Aggregate`, `File` | the protocol without input or output, and a client's state on disk | |
| `digest` | a fast hash of a model, to bind rounds to it | |
| `Federation`, `Member` | the same for trainings whose members come and go | |
| `Identity`, `Pins` | long-lived keys, and whose keys a client trusts | |
| `Config`, `Dataset` | settings and data of a simulated training | |
| `Run` | a simulated training | train |
| `predict` | a model that was kept, on the rows of a table | train |
| `flower` | the Flower mod and strategy | flower |
| `errors` | exceptions and their codes | |
| `LightDPError`, ... | the exceptions themselves | |
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightdp import errors, flower
    from lightdp.accountant import Odometer
    from lightdp.auditing import Audit, audit
    from lightdp.errors import (  # fmt: skip
        ArgumentError,
        BudgetError,
        InfeasibleError,
        LightDPError,
        MissingExtraError,
        ProtocolError,
        WireError,
    )
    from lightdp.federation import Federation, Member
    from lightdp.keys import Identity, Pins
    from lightdp.planning import Plan, Request, plan, plan_per_client
    from lightdp.protocol import Aggregate, Client, File, Server
    from lightdp.training.config import Config
    from lightdp.training.data import Dataset
    from lightdp.training.predict import predict
    from lightdp.training.simulator import Run
    from lightdp.wire import digest

__all__ = [
    "Aggregate", "ArgumentError", "Audit", "BudgetError", "Client", "Config", "Dataset", "Federation", "File",
    "Identity", "InfeasibleError", "LightDPError", "Member", "MissingExtraError", "Odometer", "Pins", "Plan",
    "ProtocolError", "Request", "Run", "Server", "WireError", "audit", "digest", "errors", "flower", "plan",
    "plan_per_client", "predict",
]  # fmt: skip
_HOME = {
    "Odometer": "accountant", "Identity": "keys", "Pins": "keys", "Config": "training.config",
    "Dataset": "training.data", "Run": "training.simulator", "digest": "wire", "predict": "training.predict",
    **dict.fromkeys(("Audit", "audit"), "auditing"),
    **dict.fromkeys(("Plan", "Request", "plan", "plan_per_client"), "planning"),
    **dict.fromkeys(("Federation", "Member"), "federation"),
    **dict.fromkeys(("Aggregate", "Client", "File", "Server"), "protocol"),
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a promised name on first use; a name whose extra is missing raises `MissingExtraError`."""
    if name in ("errors", "flower"):
        return import_module(f"lightdp.{name}")
    if name == "__version__":
        return import_module("importlib.metadata").version("lightdp-fl")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"lightdp.{_HOME.get(name, 'errors')}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from lightdp.errors import MissingExtraError  # noqa: PLC0415  nothing is imported before it is used

        raise MissingExtraError("train", f"lightdp.{name}") from None


def __dir__() -> list[str]:
    """The promised names."""
    return __all__
