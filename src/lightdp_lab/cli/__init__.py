"""The commands of the lab: parse, call, print. `lightdp` finds them here and imports one when it is called."""

COMMANDS = {
    "compare": ("lightdp_lab.cli.compare:command", "Every scheme, played on the same vectors, links and faults."),
    "reproduce": ("lightdp_lab.cli.reproduce:command", "The paper's tables and figures, run again."),
    "prior": ("lightdp_lab.cli.prior:app", "Weights to start from, made from noise, and private training from them."),
    "bench": ("lightdp_lab.cli.bench:app", "How fast is it on this machine?"),
}
"""Where each command is, and one line of help."""
