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


class ProtocolError(LightDPError):
    """A message is well-formed but contradicts the protocol; it was refused and changed nothing."""

    code = "protocol"
    remedy = (
        "A repeated message needs nothing. If announcements contradict each other, the server is at fault: do not "
        "trust it before you know why."
    )
    refusals: ClassVar[tuple[Refusal, ...]] = (
        Refusal(
            "this node accepts lightdp-",
            "The plan protects another unit, or under another adjacency, than the node's operator allows.",
            "Agree on a plan. The operator changes `lightdp-unit` or `lightdp-adjacency` only if the app protects "
            "that unit.",
        ),
        Refusal(
            "the plan's … is … lightdp-",
            "The plan is beyond a limit of the node: its ε, δ, rounds or stragglers are too large, or its colluders, "
            "clip or sampling rate too small.",
            "The server plans within the limit, or the operator changes it, knowing what it protects.",
        ),
        Refusal(
            "lightdp-record-clip must say to what norm",
            "The plan protects records, and the node does not say to what norm it clips each of them.",
            "The operator sets `lightdp-record-clip` to the clip of the app's `RecordSum`.",
        ),
        Refusal(
            "the plan protects records, so the app must clip",
            "The app has the mod for unit client, which does not clip single records.",
            "Use `lightdp.flower.record_mod` and a `RecordSum`, or plan with `unit='client'`.",
        ),
        Refusal(
            "Flower keeps replies that come too late",
            "The plan supposes that late uploads stay unseen, which no Flower server can promise.",
            "Plan without `late='unseen'`.",
        ),
        Refusal(
            "a train message without a plan and roster",
            "The server's strategy is not private: it would see the plain update.",
            "Wrap the strategy: `lightdp.flower.LightDP(strategy, plan)`.",
        ),
        Refusal(
            "is lost",
            "The state file is gone, but a file that keeps its number is there: with the state went what the node has "
            "spent and which rounds it has answered.",
            "Bring the newest file back, from no backup: mount its disk, correct the path. Otherwise give it up with "
            "`lightdp state reset`, and lower the node's total by what it may have spent.",
        ),
        Refusal(
            "an older copy could answer a round again",
            "The state file is older than the one that was saved last, as after a restored backup or snapshot.",
            "Bring the newest file back. Otherwise give it up with `lightdp state reset`.",
        ),
        Refusal(
            "was saved by another client, or replaced by a copy",
            "Two processes use one state file, or a copy has taken its place.",
            "Give each node a file of its own, and end the second process. A single node needs nothing but a restart.",
        ),
        Refusal(
            "the state was saved on another machine",
            "The state was copied or moved, or the machine was installed anew. If the original still runs, both would "
            "answer the same rounds.",
            "Go on where it was saved. If that machine is gone for good: `lightdp state reset` here, and the node is "
            "in the next roster.",
        ),
        Refusal(
            "this node has no state of the run",
            "The node missed the key round, or its state was given up since.",
            "Nothing: it is in the next roster. If it is often so, look whether the node is up before a run starts.",
        ),
        Refusal(
            "of another run than this node's last key round",
            "The message belongs to a run that this node has left for a newer one, or has not enrolled in.",
            "Nothing, if another run has begun. Two servers must not use one node, with one state, at a time.",
        ),
        Refusal(
            "the plan must not change in a run",
            "The key round was repeated with another plan or length.",
            "Start a new run for another plan.",
        ),
        Refusal(
            "the roster must not change in a run",
            "The server sent another roster than the one that was joined.",
            "Start a new run. Do not trust a server that does this by itself.",
        ),
        Refusal(
            "rosters must have growing numbers",
            "The server sent a roster of an earlier number, as one does that was restored from an old checkpoint.",
            "Start a new run. Do not trust a server that does this by itself.",
        ),
        Refusal(
            "a roster of this federation has",
            "The roster has more or fewer members than the plan of the federation allows.",
            "Start a new run with a plan for the number of members that take part.",
        ),
        Refusal(
            "a roster that this member has not joined, or answers no more",
            "The round is of a roster that was replaced, or whose message got lost.",
            "Nothing: the server sends the roster again, or the member is in the next one.",
        ),
        Refusal(
            "was answered, or is over",
            "The message was repeated, or came after a later one.",
            "Nothing: each round is answered once. A node that was killed in a round has spent it.",
        ),
        Refusal(
            "a closing round must follow",
            "The first round that the node sees is a closing one, of which it cannot tell the length.",
            "Nothing: such a node has nothing to repair.",
        ),
        Refusal(
            "arrays must hold length=",
            "The model has another number of floats than the key round said.",
            "Train one model in a run; start a new run for another.",
        ),
        Refusal(
            "lightdp-total-epsilon is for one unit and adjacency",
            "The state counts earlier runs of another unit or a weaker adjacency, and they do not add up.",
            "Use a state file for each unit, with a total of its own. The totals of both protect together.",
        ),
        Refusal(
            "announcement … contradicts",
            "The server tells another history than before. Under lies the budget holds, but the model does not.",
            "Find out whether the server was restored from an old state; otherwise do not trust it.",
        ),
    )


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
            "The roster has more clients without a pin than the plan has colluders: the server may have invented them.",
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
        super().__init__(f"{purpose} needs an extra: pip install 'lightdp-fl[{extra}]'")
