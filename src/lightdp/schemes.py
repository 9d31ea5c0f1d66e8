"""The registry of schemes: what is fixed about each, stated once for tables, charts, choices and statements.

Built in are the schemes whose noise `lightdp.plan` calibrates, and "none". Other packages add theirs by an entry point
in the group "lightdp.schemes" that names a mapping of names to `Scheme`; `lightdp_lab` adds the schemes that
`lightdp compare` runs. Entry points are loaded once, for the first name that is not built in.

>>> from lightdp import schemes
>>> schemes.scheme("repair").label
'LightDP repair'
>>> schemes.scheme("central").private
False
>>> [name for name, one in schemes.BUILT_IN.items() if one.understates]
['paper']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from lightdp._validate import choice

__all__ = ["BUILT_IN", "Planned", "Scheme", "scheme", "schemes", "server_and"]

_GROUP = "lightdp.schemes"


@dataclass(frozen=True)
class Planned:
    """What `lightdp plan --compare` says about a scheme.

    Attributes:
        title: its name in that table.
        breaks: what it does not survive, in a few words.
    """

    title: str
    breaks: str


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """What is fixed about a scheme, for any number of clients and any ε. Code that runs it is elsewhere.

    Attributes:
        name: on the command line, in TOML files and records.
        title: in tables of `lightdp compare`, and in statements.
        label: in charts, where space is short.
        colour: in charts, as "#rrggbb".
        family: "none", "central", "local", "lightdp", "secure aggregation" or "encryption".
        source: who proposed it.
        broken_by: what it does not survive, in a few words.
        trips: round trips of a round; None where they depend on what happens.
        talks: whether clients send messages to each other, which need links of their own or a relay.
        private: whether the server sees no client's update without the noise that was asked for.
        understates: whether its own formula claims a smaller ε than its noise gives.
        calibration: the calibration of `lightdp.plan` that its privacy is accounted with; None without noise.
        deployable: whether `lightdp.protocol` runs it.
        noise_only: whether only its noise is simulated, since it stands for any protocol with that noise.
        simulated: whether a simulated round follows its messages, failures and time, by a plug-in's channel.
        protects_against: in statements; None for the server and the colluders of the plan (see `against`).
        results_title: in tables of `lightdp reproduce`, where it differs from `title`.
        planned: in `lightdp plan --compare`; None for schemes that it does not list.
        adjust: changes the plan of a training to the scheme's own noise, if that is not the calibration's.
    """

    name: str
    title: str
    label: str
    colour: str
    family: str
    source: str
    broken_by: str
    trips: int | None = None
    talks: bool = False
    private: bool = True
    understates: bool = False
    calibration: str | None = None
    deployable: bool = False
    noise_only: bool = False
    simulated: bool = False
    protects_against: str | None = None
    results_title: str | None = None
    planned: Planned | None = None
    adjust: Callable[[Any], Any] | None = None

    def against(self, colluders: int) -> str:
        """Whom the guarantee of a training with this scheme is against, as words of a sentence.

        >>> scheme("exact").against(4)
        'the server together with any 4 other clients'
        """
        if self.protects_against is not None:
            return self.protects_against
        if self.private:
            return server_and(colluders)
        return f"anybody who sees the models alone (not covered: {self.broken_by})"


def server_and(colluders: int, of: str = "") -> str:
    """The server and the clients that may help it, as words of a sentence.

    >>> server_and(0), server_and(1)
    ('the server', 'the server together with any other client')
    >>> server_and(2, " of each cohort")
    'the server together with any 2 other clients of each cohort'

    Args:
        colluders: how many clients may help it.
        of: among which clients, if not all.
    """
    if colluders == 0:
        return "the server"
    others = "other client" if colluders == 1 else f"{colluders:,} other clients"
    return f"the server together with any {others}{of}"


BUILT_IN = {
    one.name: one
    for one in (
        Scheme(
            name="none", title="no noise", label="no noise", colour="#b4a481", family="none", trips=1, private=False,
            source="McMahan et al. 2017", broken_by="nothing; it protects nothing",
        ),
        Scheme(
            name="central", title="central DP, trusted server", label="central DP", colour="#a3a5ad", family="central",
            source="Dwork et al. 2006; Abadi et al. 2016", calibration="central", trips=1, private=False,
            broken_by="a curious server: it sees all updates",
            planned=Planned("central DP", "a curious server: it sees all updates"),
            protects_against="anybody who sees the models alone (not the server, which saw every update)",
        ),
        Scheme(
            name="smpc", title="SMPC + DP", label="SMPC + DP", colour="#257b6a", family="secure aggregation",
            source="Bonawitz et al. 2017", broken_by="over S̄ lost, or lost peer links (P7)", trips=4, talks=True,
            calibration="smpc", noise_only=True,
            planned=Planned("SMPC + DP (SecAgg)", "over S̄ lost, or lost peer links (P7)"),
        ),
        Scheme(
            name="auto", title="LightDP", label="LightDP", colour="#363f55", family="lightdp", trips=1,
            source="LightDP-FL, exact or with repair, whichever leaves less noise (D8)", calibration="auto",
            broken_by="fewer than N - S̄ uploads", deployable=True,
        ),
        Scheme(
            name="repair", title="LightDP, repair", label="LightDP repair", colour="#4747cd", family="lightdp",
            source="LightDP-FL with carry-over repair (R1)", calibration="repair", deployable=True, trips=1,
            broken_by="fewer than N - S̄ uploads; a non-linear server step",
            planned=Planned("LightDP, repair", "over S̄ lost, or non-linear steps (R3)"),
        ),
        Scheme(
            name="exact", title="LightDP, exact", label="LightDP exact", colour="#a281e8", family="lightdp",
            source="LightDP-FL with exact calibration (D2)", calibration="exact", deployable=True, trips=1,
            broken_by="fewer than N - S̄ uploads; stragglers leave noise",
            planned=Planned("LightDP, exact", "over S̄ lost; stragglers leave noise"),
        ),
        Scheme(
            name="paper", title="LightDP, the paper's noise", label="LightDP paper", colour="#c35906", family="lightdp",
            source="LightDP-FL as printed", calibration="paper", deployable=True, understates=True, trips=1,
            broken_by="as exact; its own σ misses ε (P1-P3)", results_title="LightDP-FL, as printed",
            planned=Planned("LightDP, paper's γ", "as exact; its own σ misses ε (P1-P3)"),
        ),
        Scheme(
            name="local", title="local DP", label="local DP", colour="#8e2b29", family="local", trips=1,
            source="Dwork et al. 2006, exactly calibrated", broken_by="nothing; noise alone protects",
            calibration="local", deployable=True, planned=Planned("local DP", "nothing; noise alone protects"),
            protects_against="the server together with all other clients",
        ),
    )
}  # fmt: skip
"""The schemes of `lightdp` itself, in the order of `lightdp plan --compare`, after "none"."""


@cache
def schemes() -> dict[str, Scheme]:
    """All schemes by name: those built in, then those of installed packages.

    >>> list(schemes())[:3]
    ['none', 'central', 'smpc']
    """
    from importlib.metadata import entry_points  # noqa: PLC0415  takes a while, and built-in schemes do without

    found = dict(BUILT_IN)
    for entry in entry_points(group=_GROUP):
        found |= {name: one for name, one in entry.load().items() if name not in found}  # none replaces another
    return found


def scheme(name: str) -> Scheme:
    """The scheme of this name; other packages are searched only if it is not built in.

    >>> scheme("magic")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
      ...
    lightdp.errors.ArgumentError: scheme must be one of none, central, smpc, ..., got scheme='magic'

    Args:
        name: as on the command line.

    Raises:
        ArgumentError: no installed package knows it.
    """
    return BUILT_IN[name] if name in BUILT_IN else schemes()[choice("scheme", name, schemes())]
