"""Samples bit for bit: golden vectors, the text of the specification, and the same samples from all backends."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given, settings
from hypothesis import strategies as st

from lightdp import stream
from lightdp._native import plain
from lightdp.stream import LENGTH_MAX, SIGMA_MAX, TILE, Term, _backends
from support.streams import COMPILED, KEY, OTHER, PATHS, TERMS, by_path, samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "stream.json").read_text())


def reference(key: bytes, sigma: float, index: int) -> int:
    """One sample by the text of the specification, with scalars, single AES blocks and no bit patterns."""
    f = np.float32
    tile, place = divmod(index, 1024)
    i, sine = place % 512, place >= 512
    cipher = Cipher(AES128(key[:16]), ECB()).encryptor()  # noqa: S305 - single blocks are what counter mode is made of

    def word(position: int, size: int) -> int:
        block, offset = divmod(5120 * tile + position, 16)
        counter = int.from_bytes(key[16:], "little") ^ block
        return int.from_bytes(cipher.update(counter.to_bytes(16, "little"))[offset : offset + size], "little")

    a, b, c = word(4 * i, 4), word(2048 + 4 * i, 4), word(4096 + 2 * i, 2)
    big = f(a % 2**31) * f(2**31) + f(b % 2**31 | 1)
    m, e = np.frexp(big)  # m in [1/2, 1)
    m, e = (m, int(e) - 62) if m >= f(0.5**0.5) else (m * f(2), int(e) - 63)
    w = (m - f(1)) / (m + f(1))
    v = w * w
    series = (v * f(plain.A[0]) + f(plain.A[1])) * v + f(plain.A[2])
    radius = np.sqrt(f(2**23 * e) * f(plain.L) - series * w) * f(sigma)
    x = f(c) - f(32767.5)
    y = x * x
    s = ((y * f(plain.B[0]) + f(plain.B[1])) * y + f(plain.B[2])) * x
    k = ((y * f(plain.C[0]) + f(plain.C[1])) * y + f(plain.C[2])) * y + f(plain.C[3])
    z = (-radius if (b if sine else a) >= 2**31 else radius) * (k + s if sine else k - s)
    (bits,) = struct.unpack("<I", struct.pack("<f", float(z)))
    return round(struct.unpack("<f", struct.pack("<I", bits | 1))[0])


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda v: f"start{v['start']}")
@pytest.mark.parametrize("name", PATHS)
def test_golden_vectors_hold_on_every_path(name: str, vector: dict[str, object]) -> None:
    term = Term(bytes.fromhex(str(vector["key"])), int(str(vector["sign"])), float(str(vector["sigma"])))
    expected = vector["samples"]
    assert isinstance(expected, list)
    assert by_path(PATHS[name], len(expected), int(str(vector["start"])), [term]).tolist() == expected


def test_golden_vectors_follow_from_the_specification() -> None:
    for vector in VECTORS["vectors"]:
        key, first = bytes.fromhex(vector["key"]), vector["start"]
        indices = range(first, first + len(vector["samples"]))
        assert [vector["sign"] * reference(key, vector["sigma"], i) for i in indices] == vector["samples"]


def test_the_known_answer_is_the_one_of_the_vectors() -> None:
    assert VECTORS["known_answer"]["sha256"] == _backends.KNOWN[0]
    out = np.zeros(65 * TILE, np.int32)
    stream.accumulate(out, [Term(KEY, 1, SIGMA_MAX), Term(OTHER, -1, 1000.1)], start=1000)
    assert hashlib.sha256(out.astype("<i4").tobytes()).hexdigest() == _backends.KNOWN[0]
    for i in (0, 23, 24, 600, 65 * TILE - 1):
        assert out[i] == reference(KEY, SIGMA_MAX, 1000 + i) - reference(OTHER, 1000.1, 1000 + i)


@pytest.mark.parametrize("name", COMPILED)
@given(
    count=st.sampled_from([0, 1, 511, 512, 1023, 1024, 1025]) | st.integers(0, 5000),
    start=st.integers(0, 5000) | st.integers(0, LENGTH_MAX - 5000),
    terms=st.lists(TERMS, max_size=4),
)
@settings(deadline=None, max_examples=60, derandomize=True)
def test_compiled_and_numpy_samples_are_bit_identical(name: str, count: int, start: int, terms: list[Term]) -> None:
    expected = by_path(PATHS["numpy"], count, start, terms)
    assert np.array_equal(by_path(PATHS[name], count, start, terms), expected)


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_and_numpy_agree_over_millions_of_samples(name: str) -> None:
    terms = [Term(KEY, 1, SIGMA_MAX)]
    assert np.array_equal(by_path(PATHS[name], 1 << 22, 0, terms), by_path(PATHS["numpy"], 1 << 22, 0, terms))


@pytest.mark.parametrize("name", COMPILED)
def test_the_kernel_refuses_buffers_it_could_overrun(name: str) -> None:
    scale = np.ones(1, np.float32)
    for out, keys, scales in [
        (np.zeros(3, np.int8), KEY, scale),
        (np.zeros(4, np.int32), KEY[:31], scale),
        (np.zeros(4, np.int32), KEY + OTHER, scale),
        (np.frombuffer(bytearray(9), np.int8)[1:], KEY, scale),
    ]:
        with pytest.raises(ValueError, match="aligned int32"):
            PATHS[name].accumulate(out, 0, keys, scales)


@pytest.mark.parametrize(("a", "b"), [(0, 0), (0, 1), (1, 0), (2**31 - 1, 2**32 - 1), (2**32 - 1, 2**32 - 1)])
@pytest.mark.parametrize("c", [0, 1, 2**15 - 1, 2**15, 2**16 - 1])
def test_the_ends_of_the_uniforms_stay_finite_and_within_reach(a: int, b: int, c: int) -> None:
    pair = plain._gauss(tiles(a, b, c), np.float32(SIGMA_MAX), np.empty((7, 1, 512), np.float32))[[0, -1]]
    reach = np.sqrt(-2 * np.log((b % 2**31 | 1) / 2.0**62)) if a == 0 else 9
    assert np.hypot(*pair.astype(float)) / SIGMA_MAX <= reach + 1e-3
    if (a, b) == (0, 0):
        assert np.hypot(*pair.astype(float)) / SIGMA_MAX == pytest.approx(9.27, abs=0.01)


def tiles(*parts: int | NDArray[np.uint32]) -> NDArray[np.uint8]:
    """The keystream whose words are these: for each tile 512 of 32 bits, 512 of 32 bits and 512 of 16 bits."""
    columns = [np.broadcast_to(part, np.broadcast_shapes((1, 512), np.shape(part))) for part in parts]
    return np.hstack(
        [
            np.ascontiguousarray(column, dtype).view(np.uint8)
            for column, dtype in zip(columns, ("<u4", "<u4", "<u2"), strict=True)
        ]
    )


def test_values_before_rounding_are_right_to_8e_7_of_the_radius() -> None:
    raw = samples(KEY, SIGMA_MAX, 3 << 16).view(np.uint32) * np.uint32(2654435761)
    words = np.bitwise_xor(raw, raw >> 15, dtype=np.uint32).reshape(-1, 3, 512)
    words[::2, 0] &= np.uint32(0x80000FFF)  # tails
    a, b, c = words.transpose(1, 0, 2)
    c = c & 0xFFFF
    work, scale = np.empty((7, len(words), 512), np.float32), np.float32(2**23)  # odd numbers near it are no integers
    plain._gauss(tiles(a, b, c), scale, work)
    big = (a & 0x7FFFFFFF).astype(np.float32) * np.float32(2**31) + (b & 0x7FFFFFFF | 1).astype(np.float32)
    radius = np.sqrt(-2 * np.log(big.astype(float) / 2.0**62)) * float(scale)
    angle = (c + 0.5) * (np.pi / 2) / 2**16
    exact = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    exact *= np.where(np.stack([a, b], axis=1) >> 31, -1, 1)
    error = np.abs(work[5:].reshape(-1, 2, 512) - exact) - 0.5  # work holds the nearest integers
    assert (error <= 8e-7 * radius[:, None]).all()
    assert not (error <= 3e-7 * radius[:, None]).all()
