"""Vectors as they are packed and read again, and the run that messages belong to."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lightdp.wire import Accumulator, Message

RUN = bytes(range(16))
ROSTER = bytes(range(32, 64))
INT32 = st.integers(-(2**31), 2**31 - 1)
VECTORS = arrays.arrays(np.int32, st.integers(1, 200), elements=INT32)


def centred(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def decode(packed: bytes | bytearray | memoryview, length: int, bits: int) -> list[int]:
    accumulator = Accumulator(length, bits)
    accumulator.add(packed)
    return [int(value) for value in accumulator.total()]


def receive(data: bytes | memoryview) -> Message:
    return Message.from_bytes(data, run=RUN, roster=ROSTER)
