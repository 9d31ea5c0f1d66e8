"""A random rotation that spreads an update evenly over its coordinates, so that sums need fewer bits (W1).

Single coordinates of an update may be as large as its norm. After a rotation by random signs and Walsh-Hadamard
transforms no coordinate is much larger than the norm over the root of the block, and the range of the wire can be that
small. The map is linear and the same for everybody in a run, so masks cancel and repairs work as without it; the
server turns the sum back.

>>> rotation = Rotation(length=5, block=4, seed=bytes(16))
>>> vector = rotation.apply(np.array([0.0, 8.0, 0.0, 0.0, 0.0]))
>>> float(np.linalg.norm(vector)), bool(np.abs(vector).max() < 8)
(8.0, True)
>>> rotation.invert(vector)
>>> vector.round(9) + 0.0
array([0., 8., 0., 0., 0.])
"""

from __future__ import annotations

import hashlib
import math
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from lightdp._native import kernel
from lightdp._validate import integer
from lightdp.errors import ArgumentError

Floats = NDArray[np.float32] | NDArray[np.float64]

_LANES = 8  # what vectors of a processor hold


class Rotation:
    """An orthonormal map of vectors, given by a public seed.

    A part of block × lanes values is written in rows of `lanes` values. Each row is multiplied by a random sign and
    each column, a block, Walsh-Hadamard transformed. There are 8 lanes, or fewer where a vector has not as many blocks,
    so that a processor's vectors hold a row. The vector's first parts, as many as it has in full, are rotated so. What
    is left then is rotated in the same way together with what comes before it, as the last part of the vector: no
    vector is padded.

    Formal guarantees:
    - in exact arithmetic `apply` keeps norms and distances and `invert` undoes it; both are linear, but for the clamps
      of `apply`, which move no two vectors apart. So the map raises no sensitivity and changes no noise, whatever the
      seed.
    - in floating point the result of each differs from the exact one by at most `error(block)` times the vector's norm.
    - for a vector v and random signs, a coordinate of the result exceeds t |v| / √block with probability at most
      2 exp(−t²/2). *Proof.* It is a sum of independent random signs with weights ±v_j / √block over its block, of
      variance at most |v|² / block; Hoeffding. In the last part, v is what the other signs made of it. ∎

    Args:
        length: of the vectors.
        block: length of a block, a power of two, at most `length`.
        seed: bytes that everybody knows; the signs are SHAKE-256 of them.

    Raises:
        ArgumentError: a length is wrong.
    """

    def __init__(self, length: int, block: int, seed: bytes) -> None:
        self.length = integer("length", length, 1)
        if integer("block", block, 1) & (block - 1) or block > length:
            raise ArgumentError(f"block must be a power of two of at most length={length}, got block={block}")
        self.block, self.lanes = block, _LANES if _LANES * block <= length else 1
        self._part = block * self.lanes
        self._whole, self._seed, self._scale = length - length % self._part, seed, 1 / math.sqrt(block)

    @cached_property
    def _signs(self) -> NDArray[np.int8]:
        """Of the rows of full parts, then of the last; made when there is a vector as long, not because one says so."""
        count = self._whole // self.lanes + (self.block if self._whole < self.length else 0)
        bits = np.frombuffer(hashlib.shake_256(b"lightdp rotation" + self._seed).digest(-(-count // 8)), np.uint8)
        return 1 - 2 * np.unpackbits(bits, count=count).view(np.int8)

    @staticmethod
    def error(block: int) -> float:
        """Relative error of the floating point, in L2 norm.

        Two passes, each of log2(block) sums, a product with the scale, and a scale whose root and quotient are rounded,
        err by at most u = 2^-53 each.

        >>> Rotation.error(65536) < 1e-14
        True
        """
        return (block.bit_length() + 3) * 2.0**-52

    def apply(self, vector: Floats, *, most: float = math.inf, bound: float = math.inf) -> NDArray[np.float64]:
        """The rotated vector, a new one. (length,)

        Args:
            vector: float32 or float64, not changed. (length,)
            most: coordinates are clamped to it before they are rotated.
            bound: coordinates are clamped to it after each of their rotations.

        Raises:
            ArgumentError: the vector has another length or type, or holds NaN or infinity.
        """
        self._refuse_length(vector)
        if vector.dtype not in (np.float32, np.float64):
            raise ArgumentError(f"vector must be float32 or float64, got {vector.dtype}")
        vector, out, whole = np.require(vector, requirements=["C", "A"]), np.empty(self.length), self._whole
        shape = self._part, self._scale
        finite = rotate(out[:whole], vector[:whole], self._signs[: whole // self.lanes], *shape, most, bound, False)
        if whole < self.length:
            finite &= _enter(out[whole:], vector[whole:], most)
            last = out[self.length - self._part :]
            rotate(last, last, self._signs[whole // self.lanes :], *shape, math.inf, bound, False)
        if not finite:
            raise ArgumentError("vector must be finite, got NaN or infinity")
        return out

    def invert(self, vector: NDArray[np.float64]) -> None:
        """Turn a contiguous float64 vector back, in place. (length,)"""
        self._refuse_length(vector)
        whole, shape = self._whole, (self._part, self._scale, math.inf, math.inf)
        if whole < self.length:
            last = vector[self.length - self._part :]
            rotate(last, last, self._signs[whole // self.lanes :], *shape, True)
        rotate(vector[:whole], vector[:whole], self._signs[: whole // self.lanes], *shape, True)

    def _refuse_length(self, vector: Floats) -> None:
        if vector.shape != (self.length,):
            raise ArgumentError(f"vector must have {self.length} values, got shape {vector.shape}")


def _rotate(  # noqa: PLR0917  as the kernel
    out: NDArray[np.float64],
    values: Floats,
    signs: NDArray[np.int8],
    part: int,
    scale: float,
    most: float,
    bound: float,
    back: bool,
    /,
) -> bool:
    """As the kernel, with the same bits: sums and differences of rows at distances 1, 2, 4, ... within each part."""
    rows, factors, finite = out.reshape(signs.size, -1), (scale * signs)[:, None], True
    if not back:
        finite = _enter(out, values, most)
        rows *= factors
    distance = rows.shape[1]
    while distance < part:
        pairs = out.reshape(-1, 2, distance)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        distance *= 2
    if back:
        rows *= factors
    else:
        np.clip(out, -bound, bound, out=out)
    return finite


def _enter(out: NDArray[np.float64], values: Floats, most: float) -> bool:
    """Copies and clamps; False if a value is not finite."""
    out[...] = values
    finite = bool(np.isfinite(out).all())
    np.clip(out, -most, most, out=out)
    return finite


rotate = _rotate if kernel is None else partial(kernel.rotate, kernel.ROTATIONS[0])
