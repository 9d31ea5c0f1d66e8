"""A random rotation that spreads an update evenly over its coordinates, so that sums need fewer bits (W1).

Single coordinates of an update may be as large as its norm. After a rotation by random signs and Walsh-Hadamard
transforms no coordinate is much larger than the norm over the root of the block, and the range of the wire can be that
small. The map is linear and the same for everybody in a run, so masks cancel and repairs work as without it; the
server turns the sum back.

>>> rotation = Rotation(length=5, block=4, seed=bytes(16))
>>> vector = np.array([0.0, 8.0, 0.0, 0.0, 0.0])
>>> rotation.apply(vector)
>>> float(np.linalg.norm(vector)), bool(np.abs(vector).max() < 8)
(8.0, True)
>>> rotation.invert(vector)
>>> vector.round(9) + 0.0
array([0., 8., 0., 0., 0.])
"""

from __future__ import annotations

import hashlib
import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lightdp._native import kernel
from lightdp._validate import integer
from lightdp.errors import ArgumentError


class Rotation:
    """An orthonormal map of vectors, given by a public seed.

    The first blocks, as many as the vector has in full, are multiplied by random signs and Walsh-Hadamard transformed.
    What is left then is rotated in the same way together with what comes before it, as the last block of the vector:
    no vector is padded.

    Formal guarantees:
    - in exact arithmetic `apply` keeps norms and distances and `invert` undoes it; both are linear. So the map changes
      no sensitivity and no noise, whatever the seed.
    - in floating point the result of each differs from the exact one by at most `error(block)` times the vector's norm.
    - for a vector v and random signs, a coordinate of the result exceeds t |v| / √block with probability at most
      2 exp(−t²/2). *Proof.* It is a sum of independent random signs with weights ±v_j / √block over its block, of
      variance at most |v|² / block; Hoeffding. In the last block, v is what the other signs made of it. ∎

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
        self.block = block
        self._whole, self._seed, self._scale = length - length % block, seed, 1 / math.sqrt(block)

    @cached_property
    def _signs(self) -> NDArray[np.int8]:
        """Of the full blocks, then of the last; made when there is a vector as long, not because somebody says so."""
        count = self._whole + (self.block if self._whole < self.length else 0)
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

    def apply(self, vector: NDArray[np.float64]) -> None:
        """Rotate a contiguous float64 vector, in place. (length,)"""
        for part, signs in self._parts(vector):
            rotate(part, signs, self.block, self._scale, False)

    def invert(self, vector: NDArray[np.float64]) -> None:
        """Turn a contiguous float64 vector back, in place. (length,)"""
        for part, signs in reversed(self._parts(vector)):
            rotate(part, signs, self.block, self._scale, True)

    def _parts(self, vector: NDArray[np.float64]) -> list[tuple[NDArray[np.float64], NDArray[np.int8]]]:
        """What is rotated, in this order: all full blocks, and the last one again with what is left."""
        if vector.shape != (self.length,):
            raise ArgumentError(f"vector must have {self.length} values, got shape {vector.shape}")
        parts = [(vector[: self._whole], self._signs[: self._whole])]
        if self._whole < self.length:
            parts.append((vector[self.length - self.block :], self._signs[self._whole :]))
        return parts


def _rotate(values: NDArray[np.float64], signs: NDArray[np.int8], block: int, scale: float, back: bool, /) -> None:
    """As the kernel, with the same bits: sums and differences at distances 1, 2, 4, ... within each block."""
    if not back:
        values *= scale * signs
    distance = 1
    while distance < block:
        pairs = values.reshape(-1, 2, distance)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        distance *= 2
    if back:
        values *= scale * signs


rotate = _rotate if kernel is None else kernel.rotate
