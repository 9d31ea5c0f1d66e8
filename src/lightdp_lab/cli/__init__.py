"""Commands that the lab adds to `lightdp` (entry point "lightdp.commands"): parse, call, print.

Importing this module imports no command: each has a file of its own, named here.
"""

COMMANDS = {
    "compare": (
        "lightdp_lab.cli.compare:command",
        "Every scheme, played for real on the same vectors, links, faults and privacy target: which is right for you?",
    ),
    "reproduce": (
        "lightdp_lab.cli.reproduce:command",
        "The paper's tables and figures, run again, and the same cells with a guarantee for the whole training.",
    ),
    "bench": ("lightdp_lab.cli.bench:app", "How fast is it on this machine?"),
}
"""By name: what to import, "module:attribute", and one line of help. `HELP` of the module is the whole help."""
