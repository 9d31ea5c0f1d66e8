"""What a run is made of: one frozen `Config`, from flags or from a TOML file with the same names."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from lightdp._validate import choice, integer, number, positive, share
from lightdp.errors import ArgumentError
from lightdp.planning import Calibration, Plan, Reserve, plan
from lightdp.sampling import Adjacency  # noqa: TC001  the command line reads the fields' types at run time
from lightdp.training.arrivals import law

if TYPE_CHECKING:
    from pathlib import Path


KNOWN = ("none", "central", "local", "smpc", "paper", "exact", "repair")
"""Schemes of which only the noise is played; others also have failures and take time, see `Rehearsal`."""
PLACES = ("data_path", "device")
"""Settings that say where a run finds its data and computes, not what it is."""
_LARGEST = 1e38  # learning rate: what float32 holds
Unit = Literal["record", "client", "paper"]
Fidelity = Literal["distribution", "protocol"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run. Names are those of the flags of `lightdp run` and of the keys of its TOML file.

    Attributes:
        data: "digits", "fashion-mnist", "cifar10" or a path to an .npz file.
        data_path: folder or archive of the data, where it is not found by itself.
        partition: "iid", "dirichlet:ALPHA" or "shards:K".
        model: "linear", "cnn", "scattering-linear", "scattering-cnn", "resnet18" or "wrn-16-4".
        mirror: images mean the same when mirrored, so "scattering-linear" averages both: half the parameters.
        scheme: whose noise: "none", "central", "local", "smpc", LightDP's "paper", "exact" or "repair"; or noise,
            failures and time of any scheme that `lightdp compare` knows, such as "secagg".
        unit: "record" (one step on the sum of clipped per-record gradients), "client" (the whole clipped update of
            local epochs), or the "paper" profile, whose sensitivity 2 η clip/|D_i| no theorem bounds.
        adjacency: "add-remove" or "replace".
        clients: N.
        colluders: C̄.
        stragglers: S̄.
        rounds: T.
        epsilon: ε of the whole training, or of each round.
        delta: δ, likewise.
        epsilon_per: what `epsilon` is for, "training" or "round". The paper's is for a round; then no budget ends the
            training, whose true ε is in the record.
        clip: L2 bound on a record's gradient or a client's update.
        reserve: whether the noise lasts all rounds of "expected" or of "worst" stragglers, where they cost budget.
        arrivals: who misses a round: "none", "uniform", "links:P", "latency:..." or "trace:FILE.csv".
        links: model how long rounds take, with messages between clients "relayed" by the server or on links of their
            own that fail with probability P each, "direct:P"; None models no time except for compared schemes, which
            are then relayed.
        late_seen: probability that a client that missed a round was seen all the same.
        sampling_rate: Poisson rate of a round's batch (unit "record").
        augment: views of each record, random crops after padding by 4 pixels, mirrored or not, whose gradients are
            averaged before they are clipped (unit "record", convolutional models); "scattering-cnn" has 2, the image
            and its mirror image; 1 takes records as they are.
        epochs: local epochs (units "client" and "paper").
        batch: local batch size (likewise).
        local_lr: local learning rate (likewise).
        lr: server learning rate.
        momentum: server momentum.
        ema: decay of the average of the weights that is evaluated, less in the first rounds, so that the random start
            is soon forgotten; 0 evaluates the weights themselves.
        degree: pairwise noise with so many peers; None for all.
        fidelity: "protocol" drives the real clients and server; "distribution" adds noise of the same distribution.
        evaluate_every: rounds between two looks at the test set and, where batches are sampled, at the ε spent.
        seed: of everything but noise that protects.
        device: "auto", "cpu" or "cuda".
    """

    data: str = "digits"
    data_path: str | None = None
    partition: str = "iid"
    model: str = "linear"
    mirror: bool = False
    scheme: str = "repair"
    unit: Unit = "record"
    adjacency: Adjacency = "add-remove"
    clients: int = 20
    colluders: int = 4
    stragglers: int = 4
    rounds: int = 60
    epsilon: float = 3.0
    delta: float = 1e-5
    epsilon_per: Literal["training", "round"] = "training"
    clip: float = 1.0
    reserve: Reserve = "expected"
    arrivals: str = "uniform"
    links: str | None = None
    late_seen: float = 0.0
    sampling_rate: float = 1.0
    augment: int = 1
    epochs: int = 1
    batch: int = 32
    local_lr: float = 0.05
    lr: float = 2.0
    momentum: float = 0.9
    ema: float = 0.0
    degree: int | None = None
    fidelity: Fidelity = "distribution"
    evaluate_every: int = 1
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        from lightdp_lab.schemes import SCHEMES  # noqa: PLC0415  refuses, when imported, a path that is not there

        choice("scheme", self.scheme, tuple(dict.fromkeys((*KNOWN, *SCHEMES))))
        choice("unit", self.unit, get_args(Unit))
        choice("fidelity", self.fidelity, get_args(Fidelity))
        choice("epsilon_per", self.epsilon_per, ("training", "round"))
        choice("device", self.device, ("auto", "cpu", "cuda"))
        for name in ("augment", "epochs", "batch", "evaluate_every"):
            integer(name, getattr(self, name), 1)
        for name in ("lr", "local_lr"):
            if positive(name, getattr(self, name)) > _LARGEST:
                raise ArgumentError(f"{name} must be <= {_LARGEST:g}, got {name}={getattr(self, name):g}")
        for name in ("momentum", "ema"):
            if not 0 <= number(name, getattr(self, name)) < 1:
                raise ArgumentError(f"{name} must be in [0, 1), got {name}={getattr(self, name):g}")
        share("late_seen", self.late_seen)
        integer("seed", self.seed, 0, 2**63 - 1)
        if self.fidelity == "protocol" and self.scheme not in ("local", "paper", "exact", "repair"):
            raise ArgumentError(
                f"fidelity must be distribution for scheme={self.scheme!r}, whose clients add no noise alone"
            )
        if self.links is not None and self.scheme == "smpc":
            raise ArgumentError("links need a scheme that has messages, such as secagg, got scheme='smpc'")
        peer_failure(self.links)
        self._check_records()

    def _check_records(self) -> None:
        """What is done to records must fit the model and the unit."""
        local = {f.name: f.default for f in dataclasses.fields(self) if f.name in ("epochs", "batch", "local_lr")}
        for name, usual in local.items() if self.unit == "record" else ():
            if getattr(self, name) != usual:
                raise ArgumentError(
                    f"{name} needs unit='client' or 'paper': a round of unit='record' is one step on all records or a "
                    f"Poisson batch, got {name}={getattr(self, name):g}"
                )
        if self.mirror and self.model != "scattering-linear":
            raise ArgumentError(f"mirror needs model='scattering-linear', got model={self.model!r}")
        if self.sampling_rate != 1 and self.unit != "record":
            raise ArgumentError(
                f"sampling_rate must be 1 for unit={self.unit!r}, got sampling_rate={self.sampling_rate:g}"
            )
        if self.augment == 1:
            return
        if self.unit != "record":
            raise ArgumentError(f"augment must be 1 for unit={self.unit!r}, got augment={self.augment}")
        if self.model.endswith("linear"):
            raise ArgumentError(f"augment needs a convolutional model, got model={self.model!r}")
        if self.model.startswith("scattering") and self.augment > 2:
            raise ArgumentError(f"augment must be at most 2 for model={self.model!r}, got augment={self.augment}")

    @property
    def compared(self) -> bool:
        """Whether rounds can fail and take time as those of a scheme that `lightdp compare` plays."""
        return self.scheme not in KNOWN

    @property
    def misses(self) -> bool:
        """Whether the scheme's own formula misses ε, so that its true ε is what is being tried."""
        return self.scheme in ("paper", "local-paper")

    @property
    def unbounded(self) -> bool:
        """Whether the training goes on whatever it has cost."""
        return self.misses or self.epsilon_per == "round"

    def plan(self, records: int, parameters: int, smallest: int) -> Plan | None:
        """The noise for data of `records` records, `smallest` of them at the smallest client; None without noise."""
        if self.scheme in ("none", "plain"):
            return None
        paper = self.unit == "paper"
        calibration: Any = self.scheme if self.scheme in get_args(Calibration) else "smpc"
        found = plan(
            clients=self.clients,
            colluders=self.colluders,
            stragglers=self.stragglers,
            rounds=self.rounds if self.epsilon_per == "training" else 1,
            epsilon=self.epsilon,
            delta=self.delta,
            clip=2 * self.local_lr * self.clip / smallest if paper else self.clip,
            calibration="local" if self.scheme == "local-paper" else calibration,
            unit="client" if paper else self.unit,  # type: ignore[arg-type]
            adjacency=self.adjacency,
            sampling_rate=self.sampling_rate,
            degree=self.degree,
            straggler_law=law(self.arrivals, clients=self.clients, bound=self.stragglers),
            reserve=self.reserve,
            records=records,
            parameters=parameters,
            late="seen" if self.late_seen > 0 or self.arrivals.startswith(("latency", "trace")) else "unseen",
        )
        if self.scheme != "local-paper":
            return found
        from lightdp_lab.schemes.plain import printed_sigma  # noqa: PLC0415  likewise

        sigma = printed_sigma(found.sensitivity, epsilon=found.budget, delta=found.delta, rounds=found.rounds)
        return dataclasses.replace(found, sigma_individual=sigma, sigma_effective=sigma)


def peer_failure(links: str | None) -> float | None:
    """P of "direct:P"; None where peers are reached through the server."""
    if links is None or links == "relayed":
        return None
    kind, _, text = links.partition(":")
    try:
        failure = float(text)
    except ValueError:
        failure = math.nan
    if kind != "direct" or not 0 <= failure <= 1:
        raise ArgumentError(f"links must be relayed or direct:P with P in [0, 1], got links={links!r}")
    return failure


def read_toml(path: Path) -> dict[str, Any]:
    """The settings of a TOML file, each a field of `Config`; hyphens, as in flags, are as good as underscores."""
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ArgumentError(f"config must be a readable TOML file, got config={str(path)!r}: {error}") from None
    found = {name.replace("-", "_"): value for name, value in written.items()}
    if len(found) < len(written):
        raise ArgumentError(f"config must say each name once, got one with hyphens and with underscores in {path}")
    known = {field.name for field in dataclasses.fields(Config)}
    unknown = sorted(set(found) - known)
    if unknown:
        raise ArgumentError(f"config must have known names only, got {', '.join(unknown)} in {path}")
    return found
