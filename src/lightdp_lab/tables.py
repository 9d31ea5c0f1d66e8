"""Results as tables: trials of a cell together, beside what the paper prints, with the ε that is true."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lightdp.errors import ArgumentError
from lightdp.training.config import Config
from lightdp_lab.registry import ALL
from lightdp_lab.reproduce import Profile, Target, cells, started

if TYPE_CHECKING:
    from lightdp_lab.results import Line, Results  # with torch, which `lightdp reproduce --help` does not need

_MOST = 20  # trials of a cell that are looked for
MODELS = {
    "resnet18": "ResNet-18",
    "scattering-linear": "scattering + linear",
    "scattering-cnn": "scattering + CNN",
    "wrn-16-4": "WRN-16-4",
}

PRIOR_EPSILONS = (1.0, 3.0, 6.0, 9.0)
# Published accuracies without natural public images, trusted server, δ = 1e-5, by ε, as replications found them.
ANCHORS: dict[str, dict[float, float]] = {
    "DP-RandP, trusted server": {1.0: 72.5},
    "De et al., trusted server, no start": {1.0: 56.8, 2.0: 62.9, 4.0: 69.5, 8.0: 78.7},
    "ScatterNet + CNN, trusted server": {1.0: 60.9, 2.0: 67.0, 4.0: 69.7, 8.0: 72.4},
}


@dataclass(frozen=True)
class Cell:
    """All trials of one cell that there are: the settings without the seed, and the kept lines."""

    config: Config
    lines: tuple[Line, ...]

    @property
    def trials(self) -> int:
        """How many."""
        return len(self.lines)

    @property
    def accuracy(self) -> float | None:
        """The mean."""
        return statistics.mean(line["accuracy"] for line in self.lines) if self.lines else None

    @property
    def spread(self) -> float | None:
        """The standard deviation of one trial."""
        return statistics.stdev(line["accuracy"] for line in self.lines) if self.trials > 1 else None

    def largest(self, name: str) -> float | None:
        """The maximum over trials of a value of their lines; None if no trial has it."""
        return max((line[name] for line in self.lines if line[name] is not None), default=None)

    def text(self, *, count: bool = False) -> str:
        """In per cent, and how sure: "66.6 ± 0.2 (5)"; a dash where nothing was run."""
        if self.accuracy is None:
            return "–"
        spread = "" if self.spread is None else f" ± {100 * self.spread:.1f}"
        return f"{100 * self.accuracy:.1f}{spread}{f' ({self.trials})' if count else ''}"

    def to_dict(self) -> dict[str, Any]:
        """For scripts."""
        asked = ("scheme", "model", "epsilon", "colluders", "stragglers", "clip", "partition", "links")
        at = {name: getattr(self.config, name) for name in asked}
        at |= {name: getattr(self, name) for name in ("trials", "accuracy", "spread")}
        return at | {"epsilon_round": self.largest("epsilon_round"), "epsilon_training": self.largest("epsilon")}


class Gain(NamedTuple):
    """How many points one cell is above another: the mean over trials of the same seed, and its standard error."""

    points: float
    error: float | None

    def __str__(self) -> str:
        """With two digits, as many as the error allows.

        >>> print(Gain(0.036, 0.064))
        +0.04 ± 0.06
        """
        return f"{self.points:+z.2f}{'' if self.error is None else f' ± {self.error:.2f}'}"


def gain(one: Cell | None, other: Cell | None) -> Gain | None:
    """What the first cell has above the second; None where they have no seed in common."""
    if one is None or other is None:
        return None
    ours, theirs = ({line["config"]["seed"]: line["accuracy"] for line in cell.lines} for cell in (one, other))
    points = [100 * (ours[seed] - theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    if not points:
        return None
    return Gain(statistics.mean(points), statistics.stdev(points) / len(points) ** 0.5 if len(points) > 1 else None)


def title(scheme: str) -> str:
    """A scheme in the tables of results.

    >>> title("paper")
    'LightDP-FL, as printed'
    """
    known = ALL[scheme]
    return known.title if known.results_title is None else known.results_title


def together(configs: Iterable[Config], results: Results) -> list[Cell]:
    """The cells of these runs, in their order, with whatever trials `results` has."""
    trials: dict[Config, list[Line]] = defaultdict(list)
    for config in configs:
        found = results.find(config)
        trials[replace(config, seed=0)] += [] if found is None else [found]
    return [Cell(config, tuple(lines)) for config, lines in trials.items()]


def known(results: Results, target: Target, profile: Profile, **chosen: Any) -> list[Cell]:  # noqa: ANN401  as `cells`
    """The cells of a target with all trials that there are."""
    return together(cells(target, profile, trials=_MOST, **chosen), results)


def guaranteed(results: Results, target: Target, scheme: str, **chosen: Any) -> list[Cell]:  # noqa: ANN401  likewise
    """The cells of one scheme with a guarantee for the whole training."""
    return known(results, target, "exact" if scheme == "exact" else "repair", schemes=(scheme,), **chosen)


def from_start(results: Results) -> list[Cell]:
    """The cells of `lightdp reproduce rounds --profile prior` with all trials that there are."""
    return together(started(epsilons=PRIOR_EPSILONS, seeds=tuple(range(_MOST)), schemes=("central", "repair")), results)


def trials(counts: Iterable[int]) -> str:
    """How many trials cells have, in words; cells without any do not count.

    >>> trials([3, 1, 0]), trials([1]), trials([])
    ('1 to 3 trials', '1 trial', 'not run')
    """
    found = sorted(set(counts) - {0})
    return f"{span(found)} trial{'s' if found[-1] > 1 else ''}" if found else "not run"


def span(values: Iterable[int]) -> str:
    """From the smallest to the largest.

    >>> span([200, 1500]), span([7, 7])
    ('200 to 1,500', '7')
    """
    found = sorted(values)
    return " to ".join(f"{value:,}" for value in dict.fromkeys((found[0], found[-1])))


class Grid(NamedTuple):
    """A table of a page, which as text is one of Markdown.

    >>> print(Grid(["ε", "accuracy"], [["3", "66.6"]]))
    | ε | accuracy |
    | --- | --- |
    | 3 | 66.6 |
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def filled(text: str, blocks: Mapping[str, str]) -> str:
    r"""A page whose blocks, each between its two marks, are these.

    >>> filled("<!-- begin a -->\nold\n<!-- end -->", {"a": "new"})
    '<!-- begin a -->\nnew\n<!-- end -->'

    Args:
        text: the page as it is.
        blocks: contents by the name in the mark.

    Raises:
        ArgumentError: a block has no mark in the page, or several.
    """
    for name, block in blocks.items():
        begin, end = f"<!-- begin {name} -->\n", "<!-- end -->"
        if text.count(begin) != 1:
            raise ArgumentError(f"a page must have one block {name}, got {text.count(begin)}")
        first, rest = text.split(begin)
        text = f"{first}{begin}{block}\n{rest[rest.index(end) :]}"
    return text
