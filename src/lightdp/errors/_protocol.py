"""The exception with most reasons: a message that a node refuses."""

from __future__ import annotations

from typing import ClassVar

from lightdp.errors._classes import LightDPError
from lightdp.errors._refusal import Refusal


class ProtocolError(LightDPError):
    """A message is well-formed but contradicts the protocol; it was refused and changed nothing."""

    code = "protocol"
    remedy = (
        "A repeated message needs nothing. If announcements contradict each other, the server is at fault: do not "
        "trust it before you know why."
    )
    refusals: ClassVar[tuple[Refusal, ...]] = (
        Refusal(
            "the plan's masks are",
            "Drawn masks protect a node whose app computes its update from the message, its data and random numbers of "
            "its own alone, and its operator does not accept that condition.",
            "The server plans with `masks='gaussian'`. The operator changes `lightdp-masks` only if the app keeps "
            "nothing between messages.",
        ),
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
            "needs a strategy of its own on the server: take it out",
            "Another mod of the app clips, adds noise or hides updates by itself, and fails beside lightdp.",
            "Take it out of the app's mods.",
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
            "in the next run.",
        ),
        Refusal(
            "the state has begun this run in another file",
            "The state was copied or moved since the key round. If the original is still in use, both would answer the "
            "same rounds with the same noise.",
            "Put the file back where it was; the log of the node names the place. Elsewhere it joins the next run, "
            "which counts what was spent.",
        ),
        Refusal(
            "the state is that of … in this run, and lightdp-name is",
            "The state is a copy of another node's, or the node was renamed in the middle of a run.",
            "Give each node a state of its own, or set the name back. Under the new name it joins the next run.",
        ),
        Refusal(
            "of an earlier version of lightdp",
            "The node was updated in the middle of a run, whose state this version cannot go on from or cannot count.",
            "Nothing: the node joins the next run, which counts what was spent. For a run that cannot be counted: "
            "`lightdp state reset`, and a lower total.",
        ),
        Refusal(
            "this node has no state of the run",
            "The node missed the key round, or its state was given up since.",
            "Nothing: it is in the next roster, or in the next run if its state was given up. If it is often so, look "
            "whether the node is up before a run starts.",
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
            "a roster of this federation",
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
            "the names and shapes of trained arrays must be those",
            "The server names other arrays as trained than in the first round that the node answered in this run.",
            "Name the same arrays in all rounds; start a new run for others. Do not trust a server that does this by "
            "itself.",
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
