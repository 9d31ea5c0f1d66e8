"""The picture of a round in CONTRIBUTING.md: which module does what, in the order of a round.

Run: python docs/draw_round.py  (writes docs/img/round.svg)
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, ROW, BOX, GAP = 1180, 92, 176, 18
SERVER, CLIENT, CALLER = "#0d9488", "#2563eb", "#7c3aed"
STEPS = (
    ("server", SERVER, (
        ("protocol/server", "announce: who was used", "in the rounds before"),
        ("client_set, wire", "N bits a round,", "in an ANNOUNCE message"),
    )),
    ("client: may I answer?", CLIENT, (
        ("protocol/client", "begin: decode, refuse", "what is out of order"),
        ("protocol/history", "chain of announced sets,", "checked against its own"),
        ("repair", "cost of past rounds,", "which noise to take out"),
        ("accountant", "is there budget left for", "the costliest outcome?"),
    )),
    ("client: the upload", CLIENT, (
        ("training or flower", "local training on the", "model that was received"),
        ("clipping", "sensitivity bounded,", "coordinates clamped"),
        ("keys", "a stream key for each", "pair, bound to the chain"),
        ("stream", "keys to Gaussian noise,", "bit-equal on both sides"),
        ("masks", "data + individual +", "pairwise - repaired noise"),
    )),
    ("client: out", CLIENT, (
        ("wire", "rounded once, packed", "in an UPLOAD message"),
        ("protocol/state", "round counted on disk", "before anything leaves"),
    )),
    ("server", SERVER, (
        ("protocol/server", "receive: in time,", "late, or refused"),
        ("wire", "one running sum,", "modulo 2^b"),
        ("protocol/server", "close: the noisy sum", "and who is in it"),
        ("accountant, repair", "ε of each client, and", "who owes a repair now"),
    )),
    ("caller", CALLER, (
        ("training or flower", "linear step on the mean", "with a fixed denominator"),
        ("runlog", "one typed line", "for the round"),
        ("report", "charts and pages", "from the log"),
    )),
)  # fmt: skip


def box(x: float, y: float, colour: str, lines: tuple[str, str, str]) -> str:
    """A module and what it does in a round."""
    module, *does = map(escape, lines)
    words = "".join(
        f'<text x="{x + 12}" y="{y + 42 + 15 * i}" class="does">{text}</text>' for i, text in enumerate(does)
    )
    return (
        f'<rect x="{x}" y="{y}" width="{BOX}" height="{ROW - 24}" rx="8" fill="#fff" stroke="{colour}"/>'
        f'<text x="{x + 12}" y="{y + 22}" class="module" fill="{colour}">{module}</text>{words}'
    )


def arrow(path: str) -> str:
    """From one box to the next."""
    return f'<path d="{path}" fill="none" stroke="#94a3b8" stroke-width="1.5" marker-end="url(#head)"/>'


def picture() -> str:
    """The whole picture."""
    parts, left = [], 168
    for row, (who, colour, steps) in enumerate(STEPS):
        y = 20 + row * ROW
        parts.append(f'<text x="20" y="{y + 38}" class="who" fill="{colour}">{escape(who)}</text>')
        for column, step in enumerate(steps):
            x = left + column * (BOX + GAP)
            parts.append(box(x, y, colour, step))
            if column:
                parts.append(arrow(f"M{x - GAP} {y + 34} H{x - 4}"))
        if row + 1 < len(STEPS):
            end, below = left + (len(steps) - 1) * (BOX + GAP) + BOX / 2, y + ROW - 24
            parts.append(arrow(f"M{end} {below} V{below + 12} H{left + BOX / 2} V{below + 20}"))
    height = 20 + len(STEPS) * ROW
    style = (
        ".who{font:600 13px sans-serif}.module{font:600 13px ui-monospace,monospace}"
        ".does{font:12px sans-serif;fill:#334155}"
    )
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="One round of lightdp, module by module"><style>{style}</style>'
        f'<defs>{head}<path d="M0 0 8 4 0 8z" fill="#94a3b8"/></marker></defs>'
        f'<rect width="{WIDTH}" height="{height}" fill="#f8fafc" rx="12"/>{"".join(parts)}</svg>\n'
    )


if __name__ == "__main__":
    (Path(__file__).parent / "img/round.svg").write_text(picture(), encoding="utf-8")
