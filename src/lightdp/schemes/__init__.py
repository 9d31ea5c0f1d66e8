"""Every compared scheme, real, behind one interface: `Scheme.round` plays it message by message on a `Net`."""

from lightdp.schemes._net import Faults, Links, Net, RoundFailedError, Stage
from lightdp.schemes._scheme import Grid, Result, Scheme, Smpc, Task
from lightdp.schemes.ckks import Ckks
from lightdp.schemes.light import Exact, Paper, Repair
from lightdp.schemes.lightsecagg import LightSecAgg
from lightdp.schemes.paillier import Paillier
from lightdp.schemes.plain import Central, Local, Plain
from lightdp.schemes.swiftagg import SwiftAgg

__all__ = ["SCHEMES", "Faults", "Grid", "Links", "Net", "Result", "RoundFailedError", "Scheme", "Smpc", "Stage", "Task"]

SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme
    for scheme in (Plain, Central, Local, Exact, Repair, Paper, LightSecAgg, SwiftAgg, Paillier, Ckks)
}
"""All schemes by name, in the order of tables."""
