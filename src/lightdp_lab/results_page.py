"""The page of results in HTML: the tables of docs/evidence/results.md and its charts, in the frame of all pages."""

from __future__ import annotations

from collections.abc import Sequence

from lightdp._validate import rounded_up
from lightdp.report import Card, Page, Section, Table
from lightdp_lab import reproduce
from lightdp_lab.charts.results import results_panels
from lightdp_lab.differences import composed, printed_plan
from lightdp_lab.page import blocks_of
from lightdp_lab.reproduce import EPSILONS, TABLES
from lightdp_lab.results import Results
from lightdp_lab.tables import MODELS, Grid, guaranteed

_HEADS = {  # of tables, on the page of HTML
    "made": "Runs", "schemes": "As printed, C̄ = S̄ = 10: accuracy in % (noise std)",
    "speed": "Seconds of a whole run of ResNet-18",
    "choices": "What the paper leaves open", "models": "By model and scheme, C̄ = S̄ = 10, accuracy in %",
    "prior": "From a start from noise",
    "beside": "A linear model on features of scattering, and of a start",
    "links": "Where each link fails with 5 %, accuracy in %", "time": "Every scheme after 150 rounds",
    "table2-paper": "Table 2: colluders, S̄ = 10, as printed", "table3-paper": "Table 3: stragglers, C̄ = 10, as printed",
    "table2-training": "Table 2, ε for the whole training", "table3-training": "Table 3, ε for the whole training",
}  # fmt: skip
_WORDS = {"", "scheme", "model", "device", "partition"}  # columns of words
_PRINTED = ("schemes", "table2-paper", "table3-paper", "choices")
_WHOLE = ("table2-training", "table3-training", "links")
_GAINS = {"tables-gain": "In Tables 2 and 3", "links-gain": "Where links fail"}


def results_page(results: Results) -> Page:
    """The same tables, and the charts, for the frame of all pages.

    Args:
        results: the kept runs.
    """
    blocks, drawn = blocks_of(results), results_panels(results)

    def shown(*names: str) -> list[Table]:
        found = [(name, blocks[name]) for name in names]
        return [
            Table(block.head, block.rows, words=[head for head in block.head if head in _WORDS], title=_HEADS[name])
            for name, block in found
            if isinstance(block, Grid) and block.rows
        ]

    def part(name: str, title: str, words: Sequence[str], *tables: str) -> Section:
        _, notes, panels = drawn[name]
        return Section(title, [*words, *(f"{note[0].upper()}{note[1:]}." for note in notes)], panels, shown(*tables))

    gains = [f"{words}: {blocks[name]}" for name, words in _GAINS.items()]
    said = [line.removeprefix("- ").replace("`", "") for line in str(blocks["differences"]).splitlines()]
    models = drawn["models"][0]
    sections = [
        part("models", models, [], "models"),
        part("prior", drawn["prior"][0], [], "prior", "beside"),
        part("rounds", "As printed, and with a guarantee for the whole training", [], *_PRINTED),
        Section("The same cells, ε for the whole training", gains, tables=shown(*_WHOLE)),
        part("time", drawn["time"][0], [], "time"),
        part("noise", drawn["noise"][0], []),
        Section("Where the paper and this package differ", said),
        Section("What was run", tables=shown("made", "speed")),
    ]
    return Page(
        kind="results", title="The paper's tables and figures, and beyond them", cards=_cards(results),
        lead="Every cell of the paper run again on CIFAR-10, as printed and with one ε for the whole training.",
        sections=[each for each in sections if each.panels or each.tables or each.words],
        docs="The paper's tables and figures, and beyond them",
    )  # fmt: skip


def _cards(results: Results) -> list[Card]:
    """How much was run, and what repair reaches in the middle of the grid beside what the paper prints."""
    runs = [line for line in results.runs() if line["config"]["data"] == "cifar10"]
    hours = sum(line["seconds"] for line in runs) / 3600
    cards = [Card("Runs", f"{len(runs):,}", f"of CIFAR-10, {hours:,.0f} hours summed, each kept with its settings")]
    epsilon = EPSILONS[0]
    best: dict[str, float] = {}
    for model in reproduce.models("repair"):
        for cell in guaranteed(results, "rounds", "repair", model=model):
            if cell.config.epsilon == epsilon and cell.accuracy is not None:
                best[MODELS[model]] = cell.accuracy
    if best:
        model = max(best, key=lambda name: best[name])
        words = f"repair, {model}, ε = {epsilon:g} for the whole training, C̄ = S̄ = 10"
        cards.append(Card("Accuracy", f"{100 * best[model]:.1f} %", words))
    printed = TABLES["table2"].printed[epsilon][0]
    cards.append(Card("The paper prints", f"{printed} %", f"ResNet-18, ε = {epsilon:g} for each round"))
    true = composed(printed_plan(epsilon, colluders=10, stragglers=10), 150)
    cards.append(Card("Its true ε", rounded_up(true, 2), "over the 150 rounds, at the sensitivity it assumes"))
    return cards
