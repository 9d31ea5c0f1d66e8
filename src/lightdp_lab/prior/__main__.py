"""`python -m lightdp_lab.prior`: the commands of `lightdp prior` without typer and rich, for bare machines with a GPU.

>>> settings = parser().parse_args(["make", "--steps", "5", "--out", "a.safetensors"])
>>> settings.steps, settings.out.name
(5, 'a.safetensors')
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
from pathlib import Path
from typing import get_type_hints

from lightdp.errors import LightDPError
from lightdp_lab.prior.commands import linear, make, probe, train
from lightdp_lab.prior.recipe import Recipe


def parser() -> argparse.ArgumentParser:
    """Flags as `lightdp prior` has them."""
    top = argparse.ArgumentParser(prog="python -m lightdp_lab.prior", description=__doc__.partition("\n")[0])
    commands = top.add_subparsers(dest="command", required=True)
    one = commands.add_parser("make", help="Make a start from noise.")
    kinds = get_type_hints(Recipe)
    for field in dataclasses.fields(Recipe):
        one.add_argument(f"--{field.name}", type=kinds[field.name], default=field.default, help=field.metadata["help"])
    one.add_argument("--seconds", type=float, help="The most that it may take.")
    one.add_argument("--out", type=Path, default=Path("start.safetensors"))
    texts = {
        "probe": "A linear model on the features of a start.",
        "train": "Train privately from it.",
        "linear": "A private linear model on its features and those of scattering.",
    }
    for name, text in texts.items():
        other = commands.add_parser(name, help=text)
        other.add_argument("start", type=Path)
        other.add_argument("--data-path", type=Path, help="Folder or archive of CIFAR-10.")
        other.add_argument("--held-out", action="store_true", help="Test on a tenth of the training records.")
        if name != "probe":
            other.add_argument(
                "--epsilon", default="3" if name == "linear" else "3,6,9", help="Budgets, with commas between them."
            )
            other.add_argument("--seeds", default="0,1,2", help="Of the trials, with commas between them.")
            other.add_argument("--schemes", default="repair", help="Whose noise, with commas between them.")
            if name == "train":
                other.add_argument("--length", type=float, default=1.5, help="Length of every filter.")
            else:
                other.add_argument("--scale", type=float, default=14.0, help="Of the start's features.")
            other.add_argument(
                "--set", action="append", default=[], dest="changes", help="NAME=VALUE, a setting of lightdp run."
            )
            other.add_argument("--results", type=Path, default=Path("results"), help="Folder of the lines.")
    for each in commands.choices.values():
        each.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    return top


def main() -> int:
    """Run the command line; the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = vars(parser().parse_args())
    command = given.pop("command")
    try:
        if command == "make":
            own = {field.name: given.pop(field.name) for field in dataclasses.fields(Recipe)}
            make(Recipe(**own), **given)
        else:
            {"probe": probe, "train": train, "linear": linear}[command](**given)
    except (LightDPError, MemoryError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; what was done is kept\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
