"""The picture of a round in README.md: what each client sends, and what is left in the sum.

Run: python docs/draw_cancel.py  (writes docs/img/cancel.svg)
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, HEIGHT = 1000, 452
DATA, OWN, LOST = "#0d9488", "#64748b", "#b91c1c"
PAIRS = {"AB": "#2563eb", "AC": "#7c3aed", "BC": "#c2410c"}
CLIENTS = {"A": ("+AB", "+AC"), "B": ("−AB", "+BC"), "C": ("−AC", "−BC")}
CHIP, HIGH = 62, 30


def text(x: float, y: float, words: str, kind: str = "plain", **more: str) -> str:
    """One line of words."""
    given = ";".join(f"{name.replace('_', '-')}:{value}" for name, value in more.items())
    return f'<text x="{x}" y="{y}" class="{kind}" style="{given}">{escape(words)}</text>'


def chip(x: float, y: float, words: str, colour: str, *, width: float = CHIP, gone: bool = False) -> str:
    """A part of an upload; one that has cancelled is struck out."""
    paint = f'fill="#fff" stroke="{colour}" stroke-dasharray="4 3"' if gone else f'fill="{colour}" stroke="{colour}"'
    line = f'<path d="M{x + 6} {y + HIGH / 2} h{width - 12}" stroke="{colour}" stroke-width="2"/>' if gone else ""
    label = text(x + width / 2, y + 20, words, "chip", text_anchor="middle", fill=colour if gone else "#fff")
    return f'<rect x="{x}" y="{y}" width="{width}" height="{HIGH}" rx="6" {paint}/>{label}{line}'


def client(name: str, y: float) -> str:
    """What one client sends, and the arrow to the server."""
    parts = [
        f'<rect x="20" y="{y}" width="430" height="78" rx="10" fill="#fff" stroke="#cbd5e1"/>',
        text(36, y + 25, f"client {name}", "head"),
        chip(36, y + 36, "update", DATA, width=74),
        chip(118, y + 36, "own noise", OWN, width=92),
    ]
    for place, one in enumerate(CLIENTS[name]):
        parts.append(chip(226 + place * 104, y + 36, f"{one[0]} noise {one[1:]}", PAIRS[one[1:]], width=96))
    parts.append(f'<path d="M454 {y + 39} H566" stroke="#94a3b8" stroke-width="2" marker-end="url(#head)"/>')
    parts.append(text(510, y + 31, "one upload", "small", text_anchor="middle"))
    return "".join(parts)


def server() -> str:
    """What is left in the sum."""
    parts = [
        '<rect x="580" y="20" width="400" height="282" rx="10" fill="#f0fdfa" stroke="#0d9488"/>',
        text(600, 58, "server: adds up what arrives", "head"),
        chip(600, 74, "updates A + B + C", DATA, width=160),
        text(776, 94, "what the model needs"),
        chip(600, 116, "own noise A + B + C", OWN, width=160),
        text(776, 136, "small, stays"),
    ]
    for row, (pair, colour) in enumerate(PAIRS.items()):
        y = 166 + row * 40
        parts += [chip(600, y, f"+{pair}", colour, gone=True), chip(668, y, f"−{pair}", colour, gone=True)]
    parts += [text(752, 202, "large: hides each upload,"), text(752, 220, "cancels in the sum")]
    return "".join(parts)


def lost() -> str:
    """What happens where a client is lost."""
    y = 326
    return "".join((
        f'<rect x="20" y="{y}" width="960" height="108" rx="10" fill="#fff" stroke="{LOST}" stroke-dasharray="6 4"/>',
        text(36, y + 27, "If client C is lost", "head", fill=LOST),
        chip(36, y + 40, "+AC", PAIRS["AC"]), chip(104, y + 40, "+BC", PAIRS["BC"]),
        text(180, y + 60, "stay in the sum for one round: there is no recovery phase."),
        text(36, y + 94, "A and B take them out of their next upload (repair), and count what the round cost them."),
    ))  # fmt: skip


def picture() -> str:
    """The whole picture."""
    style = (
        "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#1e293b}"
        ".head{font-weight:600;font-size:15px}.plain{font-size:14px}"
        ".small{font-size:12px;fill:#64748b}.chip{font-size:13px;font-weight:600}"
    )
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="One round: '
        "three clients send their update, noise of their own and noise shared with each peer; shared noise cancels in "
        f'the server\'s sum"><style>{style}</style><defs>{head}<path d="M0 0 8 4 0 8z" fill="#94a3b8"/></marker></defs>'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="#f8fafc"/>'
        f"{client('A', 20)}{client('B', 122)}{client('C', 224)}{server()}{lost()}</svg>\n"
    )


if __name__ == "__main__":
    (Path(__file__).parent / "img/cancel.svg").write_text(picture(), encoding="utf-8")
