from typing import Any

from numpy.typing import NDArray

BACKENDS: tuple[str, ...]
ROTATIONS: tuple[str, ...]
EXPANSIONS: tuple[str, ...]
DIGESTS: tuple[str, ...]

def accumulate(
    backend: str,
    out: NDArray[Any],
    start: int,
    keys: bytes,
    scales: NDArray[Any],
    data: tuple[NDArray[Any], float] = ...,
    /,
) -> bool: ...
def draw(backend: str, out: NDArray[Any], start: int, keys: bytes, signs: NDArray[Any], unit: int, /) -> None: ...
def pack(values: NDArray[Any], words: NDArray[Any], shift: int, bits: int, /) -> None: ...
def unpack(values: NDArray[Any], words: NDArray[Any], shift: int, bits: int, /) -> None: ...
def rotate(
    way: str,
    out: NDArray[Any],
    values: NDArray[Any],
    signs: NDArray[Any],
    part: int,
    scale: float,
    most: float,
    bound: float,
    back: bool,
    /,
) -> bool: ...
def expand(way: str, prefix: bytes, records: bytes, /) -> bytes: ...
def strands(way: str, data: bytes | memoryview, apart: int, /) -> bytes: ...
def plant(enrolments: bytes, /) -> bytes | None: ...
def fold(way: str, tree: bytes, /) -> tuple[bytes, bytes, bytes, bytes, bytes] | None: ...
def prune(tree: bytes, columns: tuple[bytes, bytes, bytes, bytes, bytes], places: bytes, /) -> bytes | None: ...
