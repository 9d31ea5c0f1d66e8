from typing import Any

from numpy.typing import NDArray

BACKENDS: tuple[str, ...]

def accumulate(
    backend: str,
    out: NDArray[Any],
    start: int,
    keys: bytes,
    scales: NDArray[Any],
    data: tuple[NDArray[Any], float] = ...,
    /,
) -> bool: ...
def pack(values: NDArray[Any], words: NDArray[Any], shift: int, bits: int, /) -> None: ...
def unpack(values: NDArray[Any], words: NDArray[Any], shift: int, bits: int, /) -> None: ...
def rotate(values: NDArray[Any], signs: NDArray[Any], block: int, scale: float, back: bool, /) -> None: ...
