"""The kernel's inner loops give the bits of numpy on this processor and, emulated, on ARMv8 (`make test-arm`)."""

from __future__ import annotations

import json
import platform
import shutil
import struct
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lightdp._native import plain
from lightdp.keys import derivation, nodes
from lightdp.stream import LENGTH_MAX, SIGMA_MAX, TILE, UNIT_MAX
from lightdp.wire import packing, rotation

TESTS = Path(__file__).parents[1]
NATIVE = TESTS.parent / "src" / "lightdp" / "_native"
FLAGS = ["-O3", "-ffp-contract=off", "-std=gnu11", "-Wall", "-Wextra", "-Werror"]
GOLDEN = json.loads((TESTS / "vectors" / "stream.json").read_text())
VECTORS, DRAWS = GOLDEN["vectors"], GOLDEN["draws"]
PROCESSORS = {  # compiler, and what runs its programs
    "this": (["cc"], []),
    "armv8": (["aarch64-linux-gnu-gcc"], ["qemu-aarch64"]),
}
ACCUMULATE, PACK, UNPACK, ROTATE, EXPAND, PLANT, FOLD, PRUNE_ONE, DRAW = range(9)
REQUEST = struct.Struct("<11q4d16s")


@dataclass
class Call:
    """One request to the driver; the first buffer is what it writes."""

    what: int
    buffers: tuple[NDArray[Any], ...]
    path: str = ""
    start: int = 0
    part: int = 0
    back: bool = False
    shift: int = 0
    bits: int = 0
    upward: bool = False
    step: float = 1.0
    scale: float = 1.0
    limits: tuple[float, float] = (np.inf, np.inf)

    def sent(self) -> bytes:
        buffers = [each.tobytes() for each in self.buffers] + [b""] * (4 - len(self.buffers))
        numbers = self.what, *map(len, buffers), self.start, self.part, self.back, self.shift, self.bits, self.upward
        header = REQUEST.pack(*numbers, self.step, self.scale, *self.limits, self.path.encode())
        return header + b"".join(buffers)


@dataclass
class Processor:
    """A built driver, and what it says it can run."""

    command: list[str]
    paths: list[str] = field(default_factory=list)
    ways: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        first = subprocess.run(self.command, input=b"", capture_output=True, check=True).stdout.decode()
        self.paths, self.ways = (half.split() for half in first.split("/"))

    def answers(self, calls: list[Call]) -> list[tuple[int, NDArray[Any]]]:
        text = b"".join(call.sent() for call in calls)
        answer = subprocess.run(self.command, input=text, capture_output=True, check=True).stdout
        at, found = answer.index(b"\n") + 1, []
        for call in calls:
            first = call.buffers[0]
            result = int.from_bytes(answer[at : at + 8], "little", signed=True)
            found.append((result, np.frombuffer(answer, first.dtype, first.size, at + 8)))
            at += 8 + first.nbytes
        assert at == len(answer)
        return found


@pytest.fixture(scope="module", params=PROCESSORS)
def processor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Processor:
    return Processor(built(request.param, "driver", tmp_path_factory.mktemp("native")))


def built(processor: str, program: str, folder: Path, *, static: bool = True) -> list[str]:
    """The command that runs a program of this folder."""
    compiler, emulator = PROCESSORS[processor]
    for tool in compiler + emulator:
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    source, made = TESTS / "native" / f"{program}.c", folder / program
    command = [*compiler, *FLAGS, *(["-static"] if static else []), f"-I{NATIVE}", str(source), "-o", str(made), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [*emulator, str(made)]


def scales(generator: np.random.Generator, count: int) -> NDArray[np.float32]:
    sigmas = np.exp(generator.uniform(np.log(1e-3), np.log(SIGMA_MAX), count)) * generator.choice([-1, 1], count)
    return sigmas.astype(np.float32)


def compared(processor: Processor, calls: list[Call], expected: list[tuple[bool, NDArray[Any]]]) -> None:
    for call, (result, out), (fits, wanted) in zip(calls, processor.answers(calls), expected, strict=True):
        assert result == fits, call
        if fits:
            assert np.array_equal(out, wanted), call


def test_a_processor_lists_its_paths(processor: Processor) -> None:
    assert processor.ways[-1] == "plain"
    if processor.command[0] == "qemu-aarch64":
        assert (processor.paths, processor.ways) == (["armv8"], ["neon", "plain"])


def test_golden_vectors_hold(processor: Processor) -> None:
    calls, expected = [], []
    for path in processor.paths:
        for vector in VECTORS:
            key = np.frombuffer(bytes.fromhex(vector["key"]), np.uint8)
            scale = np.array([vector["sign"] * np.float32(vector["sigma"])], np.float32)
            out = np.zeros(len(vector["samples"]), np.int32)
            calls.append(Call(ACCUMULATE, (out, key, scale), path, vector["start"]))
            expected.append((True, np.array(vector["samples"], np.int32)))
    compared(processor, calls, expected)


def test_noise_has_the_bits_of_numpy_for_any_length_and_start_and_rounding_mode(processor: Processor) -> None:
    generator = np.random.default_rng(20)
    calls: list[Call] = []
    expected = []
    for path in processor.paths:
        for count in [0, 1, 3, 511, 513, 1023, 1024, 1025, 5000, *generator.integers(1, 9000, 6)]:
            start = int(generator.integers(0, 3 * TILE)) if count % 2 else int(generator.integers(0, LENGTH_MAX - 9000))
            terms = int(generator.integers(0, 5))
            key, scale = generator.integers(0, 256, 32 * terms, np.uint8), scales(generator, terms)
            out = generator.integers(-(2**31), 2**31, count, np.int32)
            calls.append(Call(ACCUMULATE, (out, key, scale), path, start, upward=len(calls) % 2 == 1))
            wanted = out.copy()
            plain.accumulate(wanted, start, key.tobytes(), scale)
            expected.append((True, wanted))
    compared(processor, calls, expected)


def test_every_bit_of_many_samples_is_that_of_numpy(processor: Processor) -> None:
    key, scale = np.arange(32, dtype=np.uint8), np.array([SIGMA_MAX], np.float32)
    wanted = np.zeros(1 << 20, np.int32)
    plain.accumulate(wanted, 0, key.tobytes(), scale)
    calls = [Call(ACCUMULATE, (np.zeros_like(wanted), key, scale), path) for path in processor.paths]
    compared(processor, calls, [(True, wanted)] * len(calls))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_data_is_rounded_with_its_noise_as_numpy_does(processor: Processor, kind: type) -> None:
    generator = np.random.default_rng(21)
    calls, expected = [], []
    for path in processor.paths:
        for count, largest in [(1, 1.0), (1000, 2.0**20), (1025, 2.0**40), (3333, 2.0**52), (4096, 1e-9)]:
            values: NDArray[Any] = generator.uniform(-largest, largest, count).astype(kind)
            key, scale = generator.integers(0, 256, 32 * 5, np.uint8), scales(generator, 5)
            scale[:3] = np.array([1000.1, SIGMA_MAX, SIGMA_MAX], np.float32)
            out, start = np.zeros(count, np.int32), 700 * (count % 7)
            calls.append(Call(ACCUMULATE, (out, key, scale, values), path, start, step=0.3, upward=count % 2 == 1))
            wanted = np.zeros(count, np.int32)
            fits = plain.accumulate(wanted, start, key.tobytes(), scale, (values, 0.3))
            assert fits == (largest < 2.0**50)
            expected.append((fits, wanted))
    compared(processor, calls, expected)


@pytest.mark.parametrize("processor_name", PROCESSORS)
def test_neither_keys_nor_noise_stay_on_the_stack(processor_name: str, tmp_path: Path) -> None:
    """Before it was wiped, whole key schedules and 20 kB of keystreams and noise did."""
    command = built(processor_name, "stack", tmp_path)
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(lines) % 3 == 0
    for line in lines:
        _, keys, others = line.split()
        assert int(keys) == 0
        assert int(others) <= 16  # an address to return to


def test_no_branch_and_no_address_depends_on_a_key(tmp_path: Path) -> None:
    """On the paths that Valgrind knows the instructions of; the source of the others is the same."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        pytest.skip("needs valgrind")
    program = built("this", "secret", tmp_path, static=False)
    found = [
        subprocess.run([valgrind, *program, *more], capture_output=True, text=True, check=True)
        for more in ([], ["branch"])
    ]
    assert all("aesni" in done.stdout for done in found) or platform.machine() != "x86_64"
    assert ["uninitialised value" in done.stderr for done in found] == [False, True]


def test_data_that_is_no_number_is_refused(processor: Processor) -> None:
    key, scale = np.zeros(96, np.uint8), np.full(3, 2.0**20, np.float32)
    bad = [np.array([1, value, 2], np.float64) for value in (np.nan, np.inf, -np.inf, 1e300)]
    calls = [
        Call(ACCUMULATE, (np.zeros(3, np.int32), key, scale, values), path)
        for path in processor.paths
        for values in bad
    ]
    assert all(result == 0 for result, _ in processor.answers(calls))


def test_golden_draws_hold(processor: Processor) -> None:
    calls, expected = [], []
    for path in processor.paths:
        for vector in DRAWS:
            keys = np.frombuffer(bytes.fromhex("".join(vector["keys"])), np.uint8)
            buffers = np.zeros(len(vector["values"]), np.int32), keys, np.array(vector["signs"], np.int8)
            calls.append(Call(DRAW, buffers, path, vector["start"], part=vector["unit"]))
            expected.append((True, np.array(vector["values"], np.int32)))
    compared(processor, calls, expected)


def test_draws_are_those_of_numpy_for_any_length_and_start_and_number_of_keys(processor: Processor) -> None:
    generator = np.random.default_rng(26)
    calls: list[Call] = []
    expected = []
    for path in processor.paths:
        for keys in [0, 1, 2, 3, 4, 49, 254, 255, 256, 1024, *map(int, generator.integers(1, 200, 6))]:
            length = int(generator.integers(0, 200 if keys > 200 else 3000))
            start = int(generator.integers(0, 3000) if keys % 2 else generator.integers(0, LENGTH_MAX - 3000))
            unit = int(generator.integers(1, UNIT_MAX, endpoint=True))
            key, signs = (
                generator.integers(0, 256, 32 * keys, np.uint8),
                generator.choice([-1, 1], keys).astype(np.int8),
            )
            out = generator.integers(-(2**31), 2**31, length, np.int32)
            calls.append(Call(DRAW, (out, key, signs), path, start, part=unit))
            wanted = out.copy()
            plain.draw(wanted, start, key.tobytes(), signs, unit)
            expected.append((True, wanted))
    compared(processor, calls, expected)


def test_every_one_of_many_draws_is_that_of_numpy(processor: Processor) -> None:
    key, signs = np.arange(96, dtype=np.uint8), np.array([1, -1, 1], np.int8)
    wanted = np.zeros(1 << 20, np.int32)
    plain.draw(wanted, 0, key.tobytes(), signs, 1)
    calls = [Call(DRAW, (np.zeros_like(wanted), key, signs), path, part=1) for path in processor.paths]
    compared(processor, calls, [(True, wanted)] * len(calls))


def test_packing_has_the_bytes_of_numpy(processor: Processor) -> None:
    generator = np.random.default_rng(22)
    calls, expected = [], []
    for bits in range(2, 33):
        length, shift = int(generator.integers(1, 700)), int(generator.integers(0, 33 - bits))
        values = generator.integers(0, 2**32, length, np.uint32)
        words = np.zeros(packing.packed_size(length, bits) // 4, np.uint32)
        calls.append(Call(PACK, (words.copy(), values), shift=shift, bits=bits))
        packing._pack(values, words, shift, bits)
        expected.append((True, words))
        calls.append(Call(UNPACK, (values, words), bits=bits))
        total = values.copy()
        packing._unpack(total, words, bits)
        expected.append((True, total))
    compared(processor, calls, expected)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("lanes", [1, 8])
def test_rotation_has_the_bits_of_numpy(processor: Processor, lanes: int, back: bool) -> None:
    generator = np.random.default_rng(23)
    calls, expected = [], []
    for way in processor.ways:
        for rows, parts in [(1, 3), (4, 2), (256, 3), (512, 2), (1024, 1), (4096, 1)]:
            part = rows * lanes
            signs = generator.choice(np.array([-1, 1], np.int8), rows * parts)
            wanted, limits = generator.normal(size=part * parts), (2.0, 1.5)
            values = wanted.astype(np.float32) if rows % 512 and not back else wanted.copy()
            buffers = (wanted.copy(), values, signs) if not back else (wanted.copy(), np.empty(0), signs)
            calls.append(Call(ROTATE, buffers, way, part=part, back=back, scale=rows**-0.5, limits=limits))
            rotation._rotate(wanted, wanted if back else values, signs, part, rows**-0.5, *limits, back)
            expected.append((True, wanted))
    compared(processor, calls, expected)


def test_rotation_says_that_a_value_is_not_finite(processor: Processor) -> None:
    signs, values = np.ones(512, np.int8), np.zeros(4096)
    values[4000] = np.inf
    calls = [Call(ROTATE, (np.zeros(4096), values, signs), way, part=4096) for way in processor.ways]
    assert [result for result, _ in processor.answers(calls)] == [0] * len(calls)


@pytest.mark.parametrize("clients", [2, 3, 50, 257])
def test_trees_have_the_bytes_of_python(processor: Processor, clients: int) -> None:
    generator = np.random.default_rng(24)
    names = sorted({f"{each:x}".encode() for each in generator.integers(0, 2**60, clients)})
    enrolments = [bytes([len(name)]) + name + generator.bytes(160) for name in names]
    tree = nodes.plant_plain(enrolments)
    columns = nodes.fold_plain(tree)
    shown = nodes.prune_plain(tree, columns, [clients // 2])

    def octets(data: bytes) -> NDArray[np.uint8]:
        return np.frombuffer(data, np.uint8)

    def zeros(data: bytes) -> NDArray[np.uint8]:
        return np.zeros(len(data), np.uint8)

    swapped = b"".join([enrolments[1], enrolments[0], *enrolments[2:]])
    place = np.array([clients // 2], "<u4")
    calls = [Call(PLANT, (zeros(tree), octets(each))) for each in (b"".join(enrolments), swapped)]
    expected = [(True, octets(tree)), (False, octets(tree))]
    for whole in (tree, shown):
        wanted = b"".join(nodes.fold_plain(whole))
        calls.append(Call(FOLD, (zeros(wanted), octets(whole)), "plain"))
        expected.append((True, octets(wanted)))
    calls.append(Call(FOLD, (zeros(b"".join(columns)), octets(tree[:-1])), "plain"))
    expected.append((False, octets(tree)))
    calls.append(Call(PRUNE_ONE, (zeros(shown), octets(tree), place), "plain"))
    compared(processor, calls, [*expected, (True, octets(shown))])


def test_keys_are_expanded_to_the_bytes_of_python(processor: Processor) -> None:
    generator = np.random.default_rng(25)
    calls, expected = [], []
    for count, length in [(1, 0), (3, 56), (50, 72), (7, 160)]:
        prefix, records = (generator.integers(0, 256, size, np.uint8) for size in (length, 40 * count))
        calls.append(Call(EXPAND, (np.zeros(32 * count, np.uint8), prefix, records), "plain"))
        wanted = derivation._expand_plain(prefix.tobytes(), records.tobytes())
        expected.append((True, np.frombuffer(wanted, np.uint8)))
    compared(processor, calls, expected)
