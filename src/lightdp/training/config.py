"""The settings of a run: one frozen `Config`, from flags or from a TOML file with the same names.

A field of `Config` states all about a setting: its type, its default, its help text and the group of flags that it
belongs to. Settings that `lightdp.plan` has too take their text from `lightdp.planning.Request`.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, get_args

from lightdp._settings import like, setting
from lightdp._validate import choice, integer, number, positive
from lightdp.errors import ArgumentError
from lightdp.planning import Late, MasksName, Plan, Request, Reserve, solve
from lightdp.sampling import Adjacency
from lightdp.schemes import Scheme, scheme
from lightdp.training.arrivals import late_shares, straggler_law
from lightdp.training.churn import chances
from lightdp.training.data import NATURAL, Layout

PLACES = ("data_path", "device")
"""Settings that say where a run finds its data and computes, not what it is."""
WEIGHTS = (".safetensors", ".pt")
"""How the names of files of weights end."""
Unit = Literal["record", "person", "client", "paper"]
Fidelity = Literal["distribution", "protocol"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of a simulated training, checked together.

    Each field has its help text and group in its metadata; flags of `lightdp run` and keys of its TOML file are the
    fields' names. All fields have defaults, so that `Config()` trains a linear model on the digits of scikit-learn.

    >>> config = Config(scheme="exact", clients=10, colluders=2, stragglers=2)
    >>> config.epsilon
    3.0
    >>> plan = config.plan(records=1438, parameters=650, smallest=143)
    >>> plan.clients, plan.budget
    (10, 3.0)
    >>> Config(momentum=1.0)
    Traceback (most recent call last):
      ...
    lightdp.errors.ArgumentError: momentum must be in [0, 1), got momentum=1

    Raises:
        ArgumentError: a setting is out of range or contradicts another; the message names it and its value.
    """

    # fmt: off
    data: str = setting(
        "digits, heart, fashion-mnist, cifar10, or the path of a .csv, .parquet or .npz file.", "digits", group="Data")
    data_path: str | None = setting("Folder or archive of the data, if not in $LIGHTDP_DATA.", None, group="Data")
    label: str | None = setting("Column of a table that has the classes.", None, group="Data")
    columns: str | None = setting(
        "TOML file with the public bounds or values of a table's columns (see docs/tutorials/own-data.md); or "
        "statistics, which takes them from the data and is not private.", None, group="Data")
    client_column: str | None = setting(
        "Column of a table that says at which client a row is; --clients follows from it.", None, group="Data")
    person_column: str | None = setting(
        "Column of a table that says whose row it is; one person with all rows is then protected (unit person).",
        None, group="Data")
    test_fraction: float | None = setting(
        "Share of a table's records, or persons, held out at each client, by default 0.2 (heart: 0.34).",
        None, group="Data")
    bounds_rounds: int | None = setting(
        "First rounds, which find the bounds that --columns calls private; by default a tenth of --rounds.",
        None, group="Data")
    partition: str = setting(
        "How records are split: iid, dirichlet:ALPHA or shards:K; natural with --client-column and heart.", "iid",
        group="Data")
    model: str = setting(
        "linear, cnn, scattering-linear, scattering-cnn, resnet18 or wrn-16-4.", "linear", group="Model")
    mirror: bool = setting(
        "Average the features of an image and its mirror image (scattering-linear).", False, group="Model")
    start: str | None = setting(
        "Weights to begin from, a .safetensors or .pt file of tensors by name; they must not come from private data.",
        None, group="Model")
    scheme: str = setting(
        "Whose noise: none, central, local, smpc, paper, exact, repair or the better of both (auto); another scheme of "
        "`lightdp compare`, such as secagg, also brings its failures and time.", "auto", group="Privacy")
    unit: Unit = setting(
        "What is protected: one record, one person with all records (needs --person-column) or one client; paper "
        "assumes a sensitivity that no theorem bounds.",
        "record", group="Privacy")
    adjacency: Adjacency = like(Request, "adjacency", "add-remove")
    clients: int = like(Request, "clients", 20)
    colluders: int = like(Request, "colluders", 4)
    stragglers: int = like(Request, "stragglers", 4)
    population: int | None = like(Request, "population", None)
    churn: str | None = setting(
        "LEAVE:JOIN: after each round each member that is there leaves with probability LEAVE, and each that is away "
        "comes back with probability JOIN.", None, group="Clients")
    least: int | None = setting(
        "Fewest members of a roster that is formed in the course of the training, by default --clients.", None,
        group="Clients")
    patience: int = setting(
        "How many rounds of its roster in a row a member may miss before it counts as gone (with population or churn).",
        3, group="Clients")
    consecutive: int = setting("Rounds that a roster has in one turn (with population).", 1, group="Clients")
    rounds: int = like(Request, "rounds", 60)
    epsilon: float = setting("Privacy budget ε, of what --epsilon-per says.", 3.0, group="Privacy")
    delta: float = like(Request, "delta", 1e-5)
    epsilon_per: Literal["training", "round"] = setting(
        "What ε and δ are for; for a round, as in the paper, no budget ends the training.", "training", group="Privacy")
    clip: float = like(Request, "clip", 1.0)
    reserve: Reserve = like(Request, "reserve", "expected")
    arrivals: str = setting(
        "Who misses a round: none, uniform (0 to S̄ clients), links:P (each with probability P), "
        "latency:MEDIAN:SPREAD:DEADLINE (log-normal times, see docs/how-to/train.md) or trace:FILE.csv (columns round, "
        "client, status).", "uniform", group="Clients")
    links: str | None = setting(
        "Model the time of rounds; messages between clients are relayed, or take links that fail: direct:P.",
        None, group="Simulation")
    late_seen: float = setting("Probability that a straggler's upload is seen too late.", 0.0, group="Clients")
    late_by_one: float = setting(
        "Probability that a straggler's upload comes one round late: used with --grace 1, else too late.",
        0.0, group="Clients")
    grace: int | None = setting(
        "Rounds for which an upload may be late and is used all the same: 0 or 1; by default 1 where arrivals have "
        "latencies, if the scheme can.", None, group="Clients")
    late: Late | None = setting(
        "Share of the stragglers whose uploads are seen too late, for which noise is planned; by default the "
        "share that --late-seen and --late-by-one make, unseen if that is 0; with latencies 0.1 under grace, else 0.",
        None, group="Clients", flag=str)
    sampling_rate: float = setting(
        "Poisson rate of a round's batches (unit record; 1 with population or churn).", 1.0, group="Training")
    augment: int = setting(
        "Views of a record (crops, mirror images) whose gradients are averaged before clipping (unit record).",
        1, group="Training")
    epochs: int = setting("Local epochs of a round (units client and paper).", 1, group="Training")
    batch: int = setting("Records in a local batch (units client and paper).", 32, group="Training")
    local_lr: float = setting("Local learning rate, η (units client and paper).", 0.05, group="Training")
    lr: float = setting("Learning rate of the server.", 2.0, group="Training")
    momentum: float = setting("Momentum of the server.", 0.9, group="Training")
    ema: float = setting("Decay of the averaged weights that are evaluated; 0 averages none.", 0.0, group="Training")
    head_rounds: int = setting(
        "First rounds that train the last layer alone, on features of the model as it starts (unit record); the other "
        "layers join over ten rounds.", 0, group="Training")
    head_lr: float | None = setting("Learning rate of these first rounds, by default --lr.", None, group="Training")
    degree: int | None = like(Request, "degree", None)
    gamma: float | None = like(Request, "gamma", None)
    masks: MasksName = like(Request, "masks", "auto")
    wire_steps: int = like(Request, "wire_steps", 2)
    rotate: bool | None = like(Request, "rotate", None)
    fidelity: Fidelity = setting(
        "Noise of the right distribution, or the protocol itself: real keys, masks and bytes.",
        "distribution", group="Simulation")
    evaluate_every: int = setting("Rounds between two evaluations on the test set.", 1, group="Simulation")
    seed: int = setting("Seed of all randomness except noise that protects data.", 0, group="Simulation")
    device: str = setting("Where to compute: auto, cpu or cuda.", "auto", group="Simulation")
    # fmt: on

    def __post_init__(self) -> None:
        self._check_scheme(scheme(self.scheme))  # or there is none
        self._read_layout()
        choice("unit", self.unit, get_args(Unit))
        choice("fidelity", self.fidelity, get_args(Fidelity))
        choice("masks", self.masks, get_args(MasksName))
        choice("epsilon_per", self.epsilon_per, ("training", "round"))
        choice("device", self.device, ("auto", "cpu", "cuda"))
        for name in ("augment", "epochs", "batch", "evaluate_every"):
            integer(name, getattr(self, name), 1)
        for name in ("lr", "local_lr", *(["head_lr"] if self.head_lr is not None else [])):
            if positive(name, getattr(self, name)) > 1e38:  # what float32 holds
                raise ArgumentError(f"{name} must be <= 1e+38, got {name}={getattr(self, name):g}")
        for name in ("momentum", "ema"):
            if not 0 <= number(name, getattr(self, name)) < 1:
                raise ArgumentError(f"{name} must be in [0, 1), got {name}={getattr(self, name):g}")
        integer("seed", self.seed, 0, 2**63 - 1)
        self._check_first()
        peer_failure(self.links)
        if self.start is not None:
            weights_file("start", self.start)
        self._check_records()
        self._check_late()
        self._check_members()

    def _check_first(self) -> None:
        """Refuse first rounds that cannot be."""
        integer("head_rounds", self.head_rounds, 0)
        if self.bounds_rounds is not None:
            integer("bounds_rounds", self.bounds_rounds, 1)
        if self.head_lr is not None and self.head_rounds == 0:
            raise ArgumentError(f"head_lr needs head_rounds, got head_lr={self.head_lr:g}")

    def _read_layout(self) -> None:
        """Put what the columns of a table mean into `partition` and `unit`."""
        layout = self.layout  # or it is wrong
        if layout.client_column is not None or self.data in NATURAL:
            if self.partition not in {"iid", "natural"}:
                raise ArgumentError(f"partition must be natural with clients of their own, got {self.partition!r}")
            object.__setattr__(self, "partition", "natural")
        if layout.person_column is not None:
            if self.unit not in {"record", "person"}:
                raise ArgumentError(f"person_column needs unit='person', got unit={self.unit!r}")
            object.__setattr__(self, "unit", "person")

    @property
    def layout(self) -> Layout:
        """What the columns of a table are."""
        return Layout(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Layout)})

    @property
    def sums(self) -> bool:
        """Whether uploads are sums of clipped gradients, of records or of persons, and not of updates.

        >>> Config().sums, Config(unit="client").sums
        (True, False)
        """
        return self.unit in {"record", "person"}

    def _check_scheme(self, known: Scheme) -> None:
        """What is asked of the scheme must be what it has."""
        if self.gamma is not None and known.calibration not in ("auto", "exact", "repair"):
            raise ArgumentError(f"gamma needs a scheme that chooses it, such as repair, got scheme={self.scheme!r}")
        if self.masks == "drawn" and known.calibration not in ("auto", "repair"):
            raise ArgumentError(f"masks='drawn' need a scheme that repairs, such as repair, got scheme={self.scheme!r}")
        if self.fidelity == "protocol" and not known.deployable:
            raise ArgumentError(
                f"fidelity must be distribution for scheme={self.scheme!r}, whose clients add no noise alone"
            )
        if self.links is not None and known.noise_only:
            raise ArgumentError(f"links need a scheme that has messages, such as secagg, got scheme={self.scheme!r}")

    def _check_late(self) -> None:
        """What becomes of late uploads must fit the arrivals and the scheme."""
        late_shares(self.arrivals, self.late_seen, self.late_by_one)
        if self.grace is not None and integer("grace", self.grace, 0, 1) > 0 and not self._alone:
            raise ArgumentError(f"grace must be 0 for scheme={self.scheme!r}, whose uploads count only together")
        if isinstance(self.late, str):
            with suppress(ValueError):  # other words are refused by `Request`
                object.__setattr__(self, "late", float(self.late))  # as a flag has it
        if self.late == "unseen" and self._too_late is not None:
            why = f"where uploads may come too late, as by {self._too_late}"
            raise ArgumentError(f"late must be a share {why}, got late='unseen'")

    def _check_members(self) -> None:
        """What is said of members must fit a training whose rosters change."""
        integer("patience", self.patience, 1)
        integer("consecutive", self.consecutive, 1)
        chances(self.churn)
        if self.population is not None:
            integer("population", self.population, self.clients, 2**32 - 2)
        if self.least is not None:
            integer("least", self.least, 2, self.clients)
        if not self.federated:
            for name in ("least", "patience", "consecutive"):
                if getattr(self, name) != getattr(Config, name):
                    raise ArgumentError(f"{name} needs population or churn, got {name}={getattr(self, name)}")
            return
        if self.sampling_rate != 1:
            raise ArgumentError(
                f"sampling_rate must be 1 with population or churn, got sampling_rate={self.sampling_rate:g}: a run "
                "adds up the squares of μ of a client's rosters, which is not how sampled batches compose; leave one "
                "of them out, or train with lightdp.flower, which composes them (lightdp.plan plans for both)"
            )
        if self.networked or scheme(self.scheme).adjust is not None:
            raise ArgumentError(
                f"population and churn need a scheme and links without a simulated network, got scheme={self.scheme!r}"
            )
        if self.late == "unseen":
            raise ArgumentError("late must be a share where members change rosters, got late='unseen'")

    def _check_records(self) -> None:
        """What is done to records must fit the model and the unit."""
        for name in ("epochs", "batch", "local_lr"):
            if self.sums and getattr(self, name) != getattr(Config, name):
                raise ArgumentError(
                    f"{name} needs unit='client' or 'paper': a round of unit={self.unit!r} is one step on all records "
                    f"or a Poisson batch, got {name}={getattr(self, name):g}"
                )
        if self.mirror and self.model != "scattering-linear":
            raise ArgumentError(f"mirror needs model='scattering-linear', got model={self.model!r}")
        if self.head_rounds > 0 and (self.unit != "record" or self.model.endswith("linear")):
            why = "unit='record' and a model with layers before its last one"
            got = f"head_rounds={self.head_rounds} with unit={self.unit!r}, model={self.model!r}"
            raise ArgumentError(f"head_rounds must be 0 without {why}, got {got}")
        if 0 < self.head_rounds > self.rounds - 10:  # or the closing rounds would correct steps that were not made
            got = f"head_rounds={self.head_rounds} with rounds={self.rounds}"
            raise ArgumentError(f"head_rounds must be 0 or leave ten rounds for all layers, got {got}")
        if self.sampling_rate != 1 and not self.sums:
            raise ArgumentError(
                f"sampling_rate must be 1 for unit={self.unit!r}, got sampling_rate={self.sampling_rate:g}; for "
                "clients that take turns, set population"
            )
        if self.augment > 1 and self.unit != "record":
            raise ArgumentError(f"augment must be 1 for unit={self.unit!r}, got augment={self.augment}")
        if self.augment > 1 and self.model.endswith("linear"):
            raise ArgumentError(f"augment needs a convolutional model, got model={self.model!r}")
        if self.augment > 2 and self.model.startswith("scattering"):
            raise ArgumentError(f"augment must be at most 2 for model={self.model!r}, got augment={self.augment}")

    @property
    def first_rounds(self) -> int:
        """How many rounds find bounds of columns, where some are private (E6): as asked, or a tenth of all.

        >>> Config(rounds=25).first_rounds, Config(bounds_rounds=5).first_rounds
        (3, 5)
        """
        return -(-self.rounds // 10) if self.bounds_rounds is None else self.bounds_rounds

    @property
    def networked(self) -> bool:
        """Whether rounds take time and may fail on a simulated network, see `lightdp.training.channel`.

        >>> Config().networked, Config(links="relayed").networked
        (False, True)
        """
        return self.links is not None or scheme(self.scheme).simulated

    @property
    def federated(self) -> bool:
        """Whether rosters take turns, or members come and go (C1).

        >>> Config().federated, Config(population=100).federated, Config(churn="0.01:0.1").federated
        (False, True, True)
        """
        return self.population is not None or self.churn is not None

    @property
    def members(self) -> int:
        """How many clients hold data: the population, or the clients of the only roster."""
        return self.clients if self.population is None else self.population

    @property
    def _alone(self) -> bool:
        """Whether each upload counts by itself, so that it may come later than others."""
        return self.scheme == "none" or scheme(self.scheme).deployable

    @property
    def grace_rounds(self) -> int:
        """Rounds for which an upload may be late and is used all the same (R5): as asked, or as fits the arrivals.

        >>> Config().grace_rounds, Config(arrivals="latency:1:0.5:2").grace_rounds, Config(grace=1).grace_rounds
        (0, 1, 1)
        """
        return int(self._alone and self.arrivals.startswith("latency")) if self.grace is None else self.grace

    @property
    def _too_late(self) -> str | None:
        """The setting, with its value, by which uploads may come too late to be used; None if none may."""
        if self.arrivals.startswith(("latency", "trace")):
            return f"arrivals={self.arrivals!r}"
        shares = {"late_seen": self.late_seen} | ({} if self.grace_rounds > 0 else {"late_by_one": self.late_by_one})
        return next((f"{name}={value:g}" for name, value in shares.items() if value > 0), None)

    @property
    def unbounded(self) -> bool:
        """Whether the training goes on whatever it has cost.

        So it does where ε is for each round, and where a scheme's own formula claims less than its noise gives: the
        run then shows what it really spent.

        >>> Config().unbounded, Config(scheme="paper").unbounded, Config(epsilon_per="round").unbounded
        (False, True, True)
        """
        return scheme(self.scheme).understates or self.epsilon_per == "round"

    def plan(self, records: int, parameters: int, smallest: int) -> Plan | None:
        """The noise for some data; None for a scheme without noise.

        Args:
            records: of all members together; for unit "person" their persons.
            parameters: length of an update.
            smallest: records of the client that has fewest; only unit "paper" depends on it.

        Raises:
            ArgumentError: no noise gives what was asked for.
        """
        known = scheme(self.scheme)
        if known.calibration is None:
            return None
        asked: dict[str, Any] = {name: getattr(self, name) for name in _SHARED} | {"calibration": known.calibration}
        if self.epsilon_per == "round":
            asked["rounds"] = 1
        if self.unit == "paper":
            asked |= {"clip": 2 * self.local_lr * self.clip / smallest, "unit": "client"}
        elif self.unit == "person":
            asked["unit"] = "record"  # each person adds one clipped term, as a record does
        if self.late is None and self.arrivals.startswith(("latency", "trace")):
            asked["late"] = None  # as plans have it: nobody says how many will be
        elif self.late is None:
            share = self.late_seen + (0.0 if self.grace_rounds > 0 else self.late_by_one)
            asked["late"] = share if share > 0 or self.federated else "unseen"
        asked |= {"straggler_law": straggler_law(self.arrivals), "grace": self.grace_rounds}
        found = solve(Request(**asked, records=records, parameters=parameters))
        return found if known.adjust is None else known.adjust(found)


_SHARED = {field.name for field in dataclasses.fields(Config)} & {field.name for field in dataclasses.fields(Request)}


def peer_failure(links: str | None) -> float | None:
    """The probability P that a link between two clients fails; None where the server relays their messages.

    >>> peer_failure("direct:0.1")
    0.1

    Args:
        links: None, "relayed" or "direct:P".

    Raises:
        ArgumentError: it is something else.
    """
    if links is None or links == "relayed":
        return None
    kind, _, text = links.partition(":")
    with suppress(ValueError):
        if kind == "direct" and 0 <= (failure := float(text)) <= 1:
            return failure
    raise ArgumentError(f"links must be relayed or direct:P with P in [0, 1], got links={links!r}")


def weights_file(name: str, path: str) -> str:
    """How the name of a file of weights ends.

    >>> weights_file("start", "prior.pt")
    '.pt'

    Args:
        name: of the argument.
        path: the file.

    Raises:
        ArgumentError: it ends otherwise.
    """
    suffix = PurePath(path).suffix if isinstance(path, str) else None
    if suffix not in WEIGHTS:
        raise ArgumentError(f"{name} must be a file whose name ends in {' or '.join(WEIGHTS)}, got {name}={path!r}")
    return suffix
