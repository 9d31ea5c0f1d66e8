"""What a wheel must do where it was just installed: make noise with the compiled kernel and play a round.

    python smoke.py vaes512,vaes,aesni     the backends of which one must be in use

It is run outside the source tree, in an environment that has the wheel, what it depends on, and no compiler.
"""

from __future__ import annotations

import sys

import numpy as np

import lightdp
from lightdp import stream
from lightdp._native import kernel

RUN = b"sixteen bytes ok"
LENGTH = 5000


def play(clients: int = 4) -> None:
    """A round of clients and a server: the mean is off by individual noise alone, as pairwise noise cancels."""
    plan = lightdp.plan(clients=clients, colluders=1, stragglers=1, rounds=2, epsilon=1e6, delta=1e-5, unit="client")
    server = lightdp.Server(plan, length=LENGTH, run=RUN)
    party = [lightdp.Client.new(plan, length=LENGTH, run=RUN, name=f"client-{i}") for i in range(clients)]
    for each in party:
        server.enrol(each.enrol())
    roster = server.roster()
    for each in party:
        each.join(roster)
    start = server.announce()
    update = np.linspace(-1, 1, LENGTH).astype(np.float32) * 0.01
    for each in party:
        server.receive(each.begin(start).upload(update))
    off, expected = float(np.std(server.close().mean() - update)), plan.sigma_individual / clients**0.5
    if not 0.9 * expected < off < 1.1 * expected:  # rounding to the wire adds 2 % of the variance
        raise SystemExit(f"the mean is off by {off:g}, expected {expected:g}")


def main() -> None:
    """Fail with a sentence, or say what was found."""
    wanted = sys.argv[1].split(",")
    if stream.backend() not in wanted:
        raise SystemExit(f"backend {stream.backend()!r} is in use, not one of {wanted}")
    if "/src/lightdp" in str(lightdp.__file__):
        raise SystemExit(f"this is the source tree: {lightdp.__file__}")
    play()
    print(f"lightdp {lightdp.__file__}: backend {stream.backend()}, rotation {kernel.ROTATIONS[0]}, a round played")


if __name__ == "__main__":
    main()
