"""Protocols that sum up clients' updates, behind one interface: `Scheme.round` runs one message by message on a `Net`.

Each is implemented with its real cryptography, so that bytes, seconds, noise and failures are measured. A `Player` sets
a scheme up and runs rounds, on the same updates for every scheme; `Faults` are the clients and links that fail.

>>> from lightdp_lab.schemes import SCHEMES, Faults, Links, Player, Task
>>> task = Task(clients=6, colluders=1, stragglers=1, dimension=8)
>>> player = Player(SCHEMES["secagg"], task, Links())
>>> played = player.round(Faults(lost={0: frozenset({5})}))  # client 5 falls silent at once
>>> sorted(played.result.used), played.net.trips
([0, 1, 2, 3, 4], 4)
>>> str(player.round(Faults(lost={0: frozenset({4, 5})})).failure)
'advertise: 4 clients, 5 needed'
"""

from lightdp_lab.schemes._net import Faults, Links, Net, Peers, RoundFailedError
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
    "SCHEMES", "Cost", "Faults", "Grid", "Links", "Net", "Peers", "Played", "Player", "Result", "RoundFailedError",
    "Scheme", "Smpc", "Task", "climb",
]  # fmt: skip

_ALL: tuple[type[Scheme], ...] = (
    Plain, Central, Local, LocalPaper, Exact, ExactSparse, Repair, Paper, Pairwise, SecAgg, SecAggPlus, Dordis,
    LightSecAgg, SwiftAgg, Paillier, Ckks,
)  # fmt: skip
SCHEMES = {scheme.about.name: scheme for scheme in _ALL}
"""All schemes by name, in the order of tables."""
