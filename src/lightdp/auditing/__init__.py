"""The adversary's seat: what uploads really reveal, measured on bytes, and whether logs, nodes and claims hold.

`audit` runs real clients, `recorded` reads a run's log, `node` a client's state, `claimed` a claim of others. Each
returns a `Finding`.
"""

from lightdp.auditing._audit import Audit
from lightdp.auditing._claims import claimed
from lightdp.auditing._finding import Finding
from lightdp.auditing._live import VALUES, Lies, audit
from lightdp.auditing._node import node
from lightdp.auditing._recorded import Contradicted, recorded
from lightdp.auditing._stories import Script, climb, of_reserved, of_worst, play, rotation

__all__ = [
    "VALUES",
    "Audit",
    "Contradicted",
    "Finding",
    "Lies",
    "Script",
    "audit",
    "claimed",
    "climb",
    "node",
    "of_reserved",
    "of_worst",
    "play",
    "recorded",
    "rotation",
]
