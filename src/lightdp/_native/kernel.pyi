from typing_extensions import Buffer

BACKENDS: tuple[str, ...]

def accumulate(
    backend: str, out: Buffer, start: int, keys: bytes, scales: Buffer, data: tuple[Buffer, float] = ..., /
) -> bool: ...
