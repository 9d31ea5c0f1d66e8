"""Every compared scheme, real, behind one interface: `Scheme.round` plays it message by message on a `Net`."""

from lightdp_lab.schemes._net import Faults, Links, Net, Peers, RoundFailedError, Stage
from lightdp_lab.schemes._play import Cost, Played, Player, climb
from lightdp_lab.schemes._scheme import Grid, Result, Scheme, Smpc, Task
from lightdp_lab.schemes.ckks import Ckks
from lightdp_lab.schemes.dordis import Dordis
from lightdp_lab.schemes.light import Exact, ExactSparse, Paper, Repair
from lightdp_lab.schemes.lightsecagg import LightSecAgg
from lightdp_lab.schemes.paillier import Paillier
from lightdp_lab.schemes.pairwise import Pairwise
from lightdp_lab.schemes.plain import Central, Local, LocalPaper, Plain
from lightdp_lab.schemes.secagg import SecAgg, SecAggPlus
from lightdp_lab.schemes.swiftagg import SwiftAgg

__all__ = [
    "SCHEMES",
    "Cost",
    "Faults",
    "Grid",
    "Links",
    "Net",
    "Peers",
    "Played",
    "Player",
    "Result",
    "RoundFailedError",
    "Scheme",
    "Smpc",
    "Stage",
    "Task",
    "climb",
]

_ALL: tuple[type[Scheme], ...] = (
    *(Plain, Central, Local, LocalPaper),
    *(Exact, ExactSparse, Repair, Paper),
    *(Pairwise, SecAgg, SecAggPlus, Dordis),
    *(LightSecAgg, SwiftAgg),
    *(Paillier, Ckks),
)
SCHEMES = {scheme.about.name: scheme for scheme in _ALL}
"""All schemes by name, in the order of tables."""
