"""The digest of long byte strings against hashlib, compiled and not."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np
import pytest

import lightdp
from lightdp._native import kernel
from lightdp.errors import ArgumentError, LightDPError
from lightdp.wire import digest, digests

WAYS = () if kernel is None else kernel.DIGESTS
SIZES = [16_384, 16_385, 16_447, 17_407, 17_408, 17_409, 33_333, 65_536, 99_999, 1_000_003]


def by_the_page(*parts: bytes) -> bytes:
    """docs/reference/wire.md, in other words."""
    text = b"lightdp digest"
    for part in parts:
        text += len(part).to_bytes(8, "little")
        if len(part) < 16_384:
            text += hashlib.sha256(part).digest()
            continue
        blocks = (len(part) + 1023) // 1024
        pieces = [part[at : at + 64 * blocks] for at in range(0, len(part), 64 * blocks)]
        assert len(pieces) == 16
        text += b"".join(hashlib.sha256(piece).digest() for piece in pieces)
    return hashlib.sha256(text).digest()


@pytest.mark.parametrize("size", [0, 1, 64, 16_383, *SIZES])
def test_it_is_what_the_page_says(size: int) -> None:
    part = np.random.default_rng(size).bytes(size)
    assert digest(part) == by_the_page(part)
    assert digest(b"first", part, b"", part) == by_the_page(b"first", part, b"", part)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [*SIZES, *range(16_384, 18_500, 61)])
def test_each_way_hashes_each_strand(way: str, size: int) -> None:
    data = memoryview(np.random.default_rng(size).bytes(size + 1))[1:]  # at any address
    apart = digests._apart(size)
    assert kernel.strands(way, data, apart) == digests._strands_plain(data, apart)


def test_no_two_ways_to_cut_some_bytes_have_one_digest() -> None:
    long = bytes(40_000)
    cuts = [(), (b"",), (b"", b""), (long,), (long, b""), (b"", long), (long[:20_000], long[20_000:])]
    cuts += [(long + b"\0",), (long[:-1],), (hashlib.sha256(b"").digest(),), (b"lightdp digest",)]
    assert len({digest(*parts) for parts in cuts}) == len(cuts)


@pytest.mark.parametrize("place", [0, 2_499, 2_560, 39_935, 39_999])
def test_every_byte_counts(place: int) -> None:
    data = bytearray(40_000)
    before = digest(data)
    data[place] ^= 1
    assert digest(data) != before


def test_arrays_count_by_their_bytes() -> None:
    model = np.arange(10_000, dtype="<f4")
    assert lightdp.digest(model) == digest(model.tobytes()) == digest(model.data) == digest(model.reshape(100, 100))
    assert lightdp.digest(model) != digest(model.astype("<f8"))
    assert digest(np.zeros((0, 3))) == digest(b"")


@pytest.mark.parametrize("part", [np.zeros((4, 4))[:, :2], "text", 3, None, [1, 2]])
def test_what_has_no_bytes_in_a_row_is_refused(part: object) -> None:
    with pytest.raises(ArgumentError, match=rf"contiguous arrays, got {type(part).__name__}"):
        digest(part)  # type: ignore[arg-type]


def test_a_kernel_that_is_wrong_is_not_used() -> None:
    right = digests._strands_plain
    assert digests._chosen((*(partial(kernel.strands, way) for way in WAYS), right)) is not right or not WAYS
    assert digests._chosen((lambda *_: bytes(512), right)) is right
    with pytest.raises(LightDPError, match="known answer"):
        digests._chosen((lambda *_: bytes(512),))


@pytest.mark.skipif(not WAYS, reason="no kernel makes strands here")
@pytest.mark.parametrize(
    ("size", "apart"),
    [(16_384, 1030), (16_384, 1088 + 64), (16_384, 960), (10, 64), (16_384, 0), (16_384, 1229782938247304512)],
)
def test_the_kernel_refuses_strands_beyond_the_data(size: int, apart: int) -> None:
    with pytest.raises(ValueError, match="whole blocks"):
        kernel.strands(WAYS[0], bytes(size), apart)
    with pytest.raises(ValueError, match="no way nothing"):
        kernel.strands("nothing", bytes(size), apart)
