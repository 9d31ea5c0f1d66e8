"""Bytes have one meaning on processors of either byte order (`make test-big-endian` runs a big-endian one)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lightdp._native import kernel, plain
from lightdp.wire import packing

SOURCE = Path(plain.__file__).parents[1]
SINGLE = {"np.uint8", "np.int8"}
CHECKED = {"flower/_arrays.py"}  # reads the order from the array's own header


def calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                yield str(path.relative_to(SOURCE)), node


def test_arrays_read_from_bytes_have_a_stated_order() -> None:
    found = [*calls("np.frombuffer")]
    assert len(found) > 5
    for path, call in found:
        kind = call.args[1] if len(call.args) > 1 else next(k.value for k in call.keywords if k.arg == "dtype")
        if path not in CHECKED:
            text = ast.unparse(kind)
            assert text in SINGLE or text.strip("'")[0] in "<>", f"{path}:{call.lineno}: {text}"


@pytest.mark.parametrize("name", ["struct.Struct", "struct.pack", "struct.unpack", "struct.unpack_from"])
def test_packed_numbers_have_a_stated_order(name: str) -> None:
    for path, call in calls(name):
        layout = ast.unparse(call.args[0])  # a string, or one and what is added to it
        numbers = set(layout) & set("hHiIlLqQnNefd")
        assert layout[1] in "<>!" or not numbers, f"{path}:{call.lineno}: {layout}"


def test_packing_in_numpy_fills_words_of_either_order() -> None:
    values = np.random.default_rng(6).integers(0, 2**32, 1000, np.uint32)
    size = packing.packed_size(values.size, 11) // 4
    found = {kind: np.zeros(size, kind) for kind in ("<u4", ">u4")}
    for words in found.values():
        packing._pack(values, words, 3, 11)
    assert found["<u4"].tolist() == found[">u4"].tolist()
    sums = np.zeros((2, 1000), np.uint32)
    for total, words in zip(sums, found.values(), strict=True):
        packing._unpack(total, words, 11)
    assert np.array_equal(*sums)


def test_the_kernel_lists_no_path_that_it_cannot_run() -> None:
    if kernel is None:
        pytest.skip("needs the compiled kernel")
    for path in kernel.BACKENDS:
        assert kernel.accumulate(path, np.zeros(1, np.int32), 0, bytes(32), np.ones(1, np.float32))
        kernel.draw(path, np.zeros(1, np.int32), 0, bytes(32), np.ones(1, np.int8), 1)
    with pytest.raises(ValueError, match="this machine has no backend sparc"):
        kernel.accumulate("sparc", np.zeros(1, np.int32), 0, bytes(32), np.ones(1, np.float32))
    with pytest.raises(ValueError, match="this machine has no backend sparc"):
        kernel.draw("sparc", np.zeros(1, np.int32), 0, bytes(32), np.ones(1, np.int8), 1)
    with pytest.raises(ValueError, match="this machine has no way sparc"):
        kernel.rotate("sparc", np.zeros(8), np.zeros(8), np.ones(8, np.int8), 8, 1.0, 1.0, 1.0, False)
