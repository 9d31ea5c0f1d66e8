"""The exceptions: what each means, what its operator does, and the refusals that need words of their own."""

from __future__ import annotations

from typing import ClassVar

from lightdp.errors._refusal import Refusal


class LightDPError(Exception):
    """Base of everything that lightdp raises on purpose."""

    code: ClassVar[str] = "error"
    remedy: ClassVar[str] = "Read the log of the node."
    refusals: ClassVar[tuple[Refusal, ...]] = (
        Refusal(
            "this node failed, and nothing left it",
            "Something failed on the node that lightdp did not foresee, such as a full disk.",
            "Read the log of the node, which has the traceback; the server is not told more.",
        ),
    )


class ArgumentError(LightDPError, ValueError):
    """An argument is wrong; nothing was computed, sent or written. The message names the argument and its value."""

    code = "argument"
    remedy = "Correct the setting that the message names."
    refusals: ClassVar[tuple[Refusal, ...]] = (
        Refusal(
            "node_config must have …, which operators set",
            "The node has not set the limits without which it accepts no plan.",
            "The node's operator sets these keys in `--node-config`. A simulation says `lightdp-simulation = true` in "
            "the app's configuration instead.",
        ),
        Refusal(
            "node_config must not have",
            "A key that begins with `lightdp` is unknown: a misspelt limit must not be a missing one.",
            "Correct its spelling; the message lists the known keys.",
        ),
        Refusal(
            "run_config must not have …: they belong in node_config",
            "The server tries to set what only the node's operator may set.",
            "Take the key out of the app's configuration; operators set it in `--node-config`.",
        ),
        Refusal(
            "must not be true on a node outside Flower's simulation engine",
            "The app's configuration says that nodes are simulated, and this one is real.",
            'Run the app with `--run-config "lightdp-simulation=false"`.',
        ),
        Refusal(
            "lightdp-identity and lightdp-pins must name files that can be read",
            "The file of the node's identity or of its pins is missing, or belongs to another user.",
            "Check path and owner. `lightdp identity new` makes an identity, `lightdp identity pins` a file of pins.",
        ),
        Refusal(
            "lightdp-state must be a file in a folder that exists",
            "The folder of the state file is missing, or cannot be written.",
            "Make the folder, owned by the user of the node; mount its disk.",
        ),
        Refusal(
            "anchor must exist",
            "There is a state, but its anchor is gone: perhaps the disk of the anchor is not mounted.",
            "Mount it. For a new anchor of an old state, begin with an empty file.",
        ),
        Refusal(
            "holds something that is no state",
            "The file `lightdp-state` is damaged, or is something else. It is not replaced: it may be what the node "
            "has spent.",
            "Name the right file. If it is damaged, its content is lost: `lightdp state reset`.",
        ),
        Refusal(
            "must be private (mode 0600)",
            "Others may read or write the identity or the state of the node.",
            "`chmod 600` the file. If others may have read it, make a new identity.",
        ),
    )


class InfeasibleError(ArgumentError):
    """Each argument is fine alone, but no noise can give what they ask for together."""

    code = "infeasible"
    remedy = (
        "Make the plan with `lightdp.plan` on the server, and use the same version of lightdp on both sides. A larger "
        "ε, fewer rounds, fewer colluders or more clients make a plan feasible."
    )
    refusals: ClassVar[tuple[Refusal, ...]] = ()


class BudgetError(LightDPError):
    """The next round could exceed the privacy budget; nothing was spent."""

    code = "budget"
    remedy = "Nothing: the budget does what it is for."
    refusals: ClassVar[tuple[Refusal, ...]] = (
        Refusal(
            "above lightdp-total-epsilon",
            "With this plan, all runs of the node together could exceed its total.",
            "The node stays away, or its operator raises `lightdp-total-epsilon`, knowing what that tells of the data. "
            "A plan with a smaller ε may still fit: `lightdp state show` says what is left.",
        ),
        Refusal(
            "round…could … at delta=",
            "The round could take this node over the ε of the plan.",
            "Nothing: the node is a straggler from now on, and the training ends once there are more than the plan's. "
            "To train longer, plan more rounds.",
        ),
    )


class WireError(LightDPError, ValueError):
    """Bytes from outside are malformed, corrupt, of another run or not to be trusted; nothing changed."""

    code = "wire"
    remedy = "Use one version of lightdp everywhere. If it persists, do not trust the server or what lies between."
    refusals: ClassVar[tuple[Refusal, ...]] = (
        Refusal(
            "clients that are not pinned",
            "The roster has more clients without a pin than the plan has colluders, or on a random graph than it has "
            "among the neighbours of a client: the server may have invented them.",
            "If they are new members, check their identities by another way than the server and add them to "
            "`lightdp-pins`. Otherwise do not trust the server.",
        ),
        Refusal(
            "has an identity other than the pinned one",
            "A member came with another identity: it has made a new one, or somebody takes its place.",
            "Ask the member. If it made a new one, exchange its line in `lightdp-pins`, but not in mid-run: the "
            "roster has the old one.",
        ),
        Refusal(
            "has the pinned identity of",
            "A member came under another name than the pinned one.",
            "Correct its `lightdp-name`, or the name in `lightdp-pins`.",
        ),
        Refusal(
            "does not contain the enrolment of",
            "The roster was made without this node, or with another key of it.",
            "Nothing: it is in the next roster. If the server has the node in its list, do not trust it.",
        ),
        Refusal(
            "roster must show",
            "The server left clients out of the roster that it sent, or on a random graph showed others than the "
            "neighbours of this node.",
            "Use one version of lightdp everywhere. If it persists, do not trust the server.",
        ),
        Refusal(
            "roster is of another run or plan",
            "The server made the roster for another plan than it sent to this node.",
            "Use one version of lightdp everywhere. If it persists, do not trust the server.",
        ),
        Refusal(
            "must be … version",
            "The server speaks another version of the protocol.",
            "Install one version of lightdp on all nodes and the server.",
        ),
    )


class MissingExtraError(LightDPError, ImportError):
    """An optional dependency is not installed; the message says which extra brings it."""

    code = "missing-extra"
    remedy = "Install the extra that the message names."
    refusals: ClassVar[tuple[Refusal, ...]] = ()

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs an extra; from a clone: pip install '.[{extra}]'")
