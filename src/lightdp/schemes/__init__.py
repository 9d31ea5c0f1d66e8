"""Every compared scheme, real, behind one interface: `Scheme.round` plays it message by message on a `Net`."""

from lightdp.schemes._net import Faults, Links, Net, Peers, RoundFailedError, Stage
from lightdp.schemes._play import Cost, Played, Player, climb
from lightdp.schemes._scheme import Grid, Result, Scheme, Smpc, Task
from lightdp.schemes.light import Exact, Paper, Repair
from lightdp.schemes.plain import Central, Local, LocalPaper, Plain

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

SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme for scheme in (Plain, Central, Local, LocalPaper, Exact, Repair, Paper)
}
"""All schemes by name, in the order of tables."""
