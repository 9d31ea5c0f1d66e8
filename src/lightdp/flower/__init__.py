"""Flower: any app on its message API becomes private against its own server, in two lines.

    app = ClientApp(mods=[lightdp.flower.mod])
    strategy = lightdp.flower.LightDP(FedAvg(...), plan)

Messages between the two, all of type TRAIN, with a ConfigRecord "lightdp":

    key round:    plan (its arguments), run, length             ->  enrolment, rounds that were answered
    each round:   run, start, closing [, roster] [, trained]    ->  one uint8 array: the packed upload; allowed metrics

The bytes are those of `lightdp.protocol`. Evaluate and query messages pass untouched. For plans of unit "record" the
mod is `record_mod`, and the app replies with the arrays of a `RecordSum`.
"""

from lightdp.errors import MissingExtraError

try:
    import flwr as _flwr  # noqa: F401  only here and below flwr is imported
except ModuleNotFoundError as error:
    raise MissingExtraError("flower", "lightdp.flower") from error

from lightdp.flower._accountant import Accountant
from lightdp.flower._mod import mod, record_mod
from lightdp.flower._records import RecordSum
from lightdp.flower._strategy import LightDP

__all__ = ["Accountant", "LightDP", "RecordSum", "mod", "record_mod"]
