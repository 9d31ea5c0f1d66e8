"""What a client masks: its update within the plan's clip and range, its weight beside it, rotated (P4), (P5), (W1)."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lightdp._validate import number
from lightdp.clipping import clamp, within_norm
from lightdp.errors import ArgumentError
from lightdp.planning import Plan
from lightdp.wire import Rotation

Floats: TypeAlias = "NDArray[np.float32] | NDArray[np.float64]"

_WEIGHT_SHARE = 0.1  # of the clip


def agreement(plan: Plan, length: int, *, weighted: bool) -> bytes:
    """32 bytes that the roster binds: the plan and the shape of uploads. Refuses weights that it does not cover."""
    if weighted and plan.unit != "client":
        raise ArgumentError(f"weighted needs unit='client', whose clip covers the weight, got unit={plan.unit!r}")
    return hashlib.sha256(plan.digest() + length.to_bytes(8, "little") + bytes([weighted])).digest()


def weight_share(plan: Plan) -> float:
    """What a weight of 1 is worth in its own coordinate, so that Δ covers both (P5) and sums do not wrap (W1)."""
    return min(_WEIGHT_SHARE * plan.clip, plan.upload_range)


def rotation(plan: Plan, length: int, run: bytes) -> Rotation | None:
    """The rotation of a run, the same for everybody; None if the plan has none.

    Args:
        plan: whether to rotate, and in which blocks.
        length: values of an upload, the weight included.
        run: names the run, and so the rotation. The server may choose it: the signs protect nothing.

    Raises:
        ArgumentError: uploads are shorter than those for which the plan's range was computed.
    """
    if plan.wire.block is None:
        return None
    if length < plan.wire.block:
        parameters = plan.request.parameters
        raise ArgumentError(f"length must be that of the plan, which rotates {parameters} parameters, got {length}")
    return Rotation(length, plan.wire.block, run)


def clipped(
    plan: Plan, update: Floats | None, weight: float, length: int, *, weighted: bool, turn: Rotation | None = None
) -> Floats:
    """The clipped, clamped, weighted update, with its weight's coordinate if there is one, rotated if the plan says so.

    Where nothing is to change, `update` itself is returned, which the caller only reads.

    Formal guarantee for unit "client": the norm of what is returned, taken as real numbers, is at most plan.clip. No
    coordinate exceeds plan.wire.range. Rotating and clamping move no two updates apart, but for what rotating rounds,
    at most `Rotation.error` of a norm, which `masks.Grid` covers.

    Args:
        plan: its clip, unit and range.
        update: a finite vector, which is not changed; None for zeros.
        weight: in [0, 1]; 1 where updates are not weighted.
        length: of the update.
        weighted: whether updates carry weights.
        turn: what `rotation` returned.

    Raises:
        ArgumentError: the update is not a finite vector of this length, or the weight is wrong.
    """
    if update is None:
        return np.zeros(length + weighted, np.float32)
    if not isinstance(update, np.ndarray) or update.shape != (length,):
        got = f"shape {update.shape}" if isinstance(update, np.ndarray) else type(update).__name__
        raise ArgumentError(f"update must be a numpy vector of {length} floats, got {got}")
    if not 0 <= number("weight", weight) <= 1 or (weight != 1 and not weighted):
        raise ArgumentError(f"weight must be {'in [0, 1]' if weighted else '1'}, got weight={weight:g}")
    share, whole = weight_share(plan) if weighted else 0.0, plan.unit == "client"
    vector = update
    if whole:
        # with a weight, 1e-6 below the clip: its product and its own coordinate are rounded
        room = (plan.clip**2 - share**2) ** 0.5 * (1 - 1e-6) if weighted else plan.clip
        vector = within_norm(update, room)
    if weighted:
        values, vector = vector, np.empty(length + 1, update.dtype)
        np.multiply(values, weight, out=vector[:length])
        vector[length:] = share * weight
    if turn is not None:
        return turn.apply(vector, most=plan.upload_range, bound=plan.wire.range)
    if not whole or plan.upload_range < plan.clip:  # else no coordinate is beyond the range
        vector = vector.copy() if vector is update else vector
        clamp(vector[:length], plan.upload_range)
    return vector
