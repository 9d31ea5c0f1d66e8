"""Files of weights: the model that a run ends with, and the weights that another begins with.

A file holds tensors by name, as `torch.nn.Module.state_dict` gives them: `.safetensors`, which other libraries read
too, or `.pt`, which torch writes. Reading either runs no code of the file. `write` keeps a model; `read` and `begin`
start one from a file whose last layer may have been made for other classes.

>>> write(Path("model.pt"), nn.Linear(4, 3))
>>> begin(nn.Linear(4, 2), read(Path("model.pt")), classes=2)
Traceback (most recent call last):
  ...
lightdp.errors.ArgumentError: start must be for 2 classes or have other layers, got model.pt with nothing to reuse
>>> model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
>>> write(Path("deep.pt"), model)
>>> begin(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)), read(Path("deep.pt")), classes=2).new
('1.weight', '1.bias')
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightdp._files import contents, durable
from lightdp.errors import ArgumentError, MissingExtraError
from lightdp.training.config import weights_file

_MOST_BYTES = 1 << 36  # far above any model that a run can train


@dataclass(frozen=True)
class File:
    """Weights as a file has them.

    Attributes:
        path: the file.
        digest: the SHA-256 of its bytes, in hexadecimal.
        tensors: by name.
        facts: what a .safetensors file says of itself.
    """

    path: Path
    digest: str
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Taken:
    """What a model took from a file.

    Attributes:
        new: tensors of the last layer that stayed as they were, since the file has none for as many classes.
        unused: tensors of the file for which the model has no place.
    """

    new: tuple[str, ...]
    unused: tuple[str, ...]


def write(
    path: Path, model: nn.Module | Mapping[str, Tensor], *, overwrite: bool = False, half: bool = False,
    facts: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Keep the parameters and buffers of a model, or tensors by name, in a file.

    Guarantee: the file has its name once it is whole and on the disk; after any crash it is whole or not there.

    Args:
        path: a new .safetensors or .pt file.
        model: on any device.
        overwrite: whether it may replace an old file.
        half: whether floats are kept in half precision.
        facts: what a .safetensors file says of itself.

    Raises:
        ArgumentError: the name ends otherwise, there is such a file that may not be replaced, a weight is not finite in
            half precision, or a .pt file is given facts.
        MissingExtraError: safetensors is not installed.
    """
    kind = weights_file("save_model", str(path))
    if kind == ".pt" and facts is not None:
        raise ArgumentError(f"save_model must be a .safetensors file, which can hold facts, got {str(path)!r}")
    state = model.state_dict() if isinstance(model, nn.Module) else model
    tensors = {name: _kept(name, value, half=half) for name, value in state.items()}
    if kind == ".pt":
        packed = io.BytesIO()
        torch.save(tensors, packed)
        data: Any = packed.getbuffer()
    else:
        data = _packed(tensors, {"format": "pt", **(facts or {})})
    try:
        with durable(path, replace=overwrite) as file:
            file.write(data)
    except FileExistsError:
        raise ArgumentError(f"save_model must be a new file: --overwrite replaces it, got {str(path)!r}") from None


def _kept(name: str, value: Tensor, *, half: bool) -> Tensor:
    """A tensor as a file has it: a copy of its own, of floats in half precision where that is asked for."""
    kept = value.detach().cpu().contiguous().clone()
    if not half or not kept.is_floating_point():
        return kept
    kept = kept.to(torch.float16)
    if not bool(kept.isfinite().all()):
        raise ArgumentError(f"weights must be finite in half precision, got {name} with others")
    return kept


def read(path: Path, *, option: str = "start") -> File:
    """The weights in a file; nothing of it is executed.

    Args:
        path: a .safetensors or .pt file of tensors by name.
        option: what messages call it.

    Raises:
        ArgumentError: there is none, or it is damaged or something else.
        MissingExtraError: safetensors is not installed.
    """
    kind, load = weights_file(option, str(path)), torch.load
    if kind == ".safetensors":
        load = _safetensors().load
    try:
        data = contents(path, limit=_MOST_BYTES)
    except (ArgumentError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ArgumentError(f"{option} must be a readable file, got {option}={str(path)!r}: {why}") from None
    try:
        found = load(data) if kind == ".safetensors" else load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file may raise anything
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgumentError(f"{option} must be a whole file of weights, got {option}={str(path)!r}: {why}") from error
    if not isinstance(found, dict) or not found:
        got = f"an empty {type(found).__name__}" if isinstance(found, dict) else type(found).__name__
        raise ArgumentError(f"{option} must hold tensors by name, got {option}={str(path)!r} with {got}")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor) or value.layout != torch.strided:
            got = f"{name!r}: {type(value).__name__ if not isinstance(value, Tensor) else value.layout}"
            raise ArgumentError(f"{option} must hold tensors by name, got {option}={str(path)!r} with {got}")
    return File(path, hashlib.sha256(data).hexdigest(), found, _facts(data) if kind == ".safetensors" else {})


def _packed(tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> bytes:
    """A .safetensors file, with its facts in their order: the library's own differs from call to call."""
    data = _safetensors().save(tensors)
    head = json.dumps({"__metadata__": dict(facts)} | json.loads(data[8 : _end(data)])).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data[_end(data) :]


def _end(data: bytes) -> int:
    """Where the header of a .safetensors file ends."""
    return 8 + int.from_bytes(data[:8], "little")


def _facts(data: bytes) -> dict[str, str]:
    """What a whole .safetensors file says of itself: its first eight bytes are the length of a JSON object."""
    told = json.loads(data[8 : _end(data)]).get("__metadata__", {})
    return {name: text for name, text in told.items() if name != "format"}


def begin(model: nn.Module, file: File, classes: int) -> Taken:
    """Copy weights of a file into the model, by name; those of another float type are converted.

    The last layer stays as it is where the file has none, or one for another number of classes. All other parameters
    and buffers must be in the file, in their shapes.

    Args:
        model: is changed in place, if nothing is wrong.
        file: what `read` returned.
        classes: how many the model has; a last layer gives as many values.

    Raises:
        ArgumentError: a tensor is missing, or has another shape, another type or a value that is not finite.
    """
    own, last = model.state_dict(), _last(model, classes)
    fresh = any(name not in file.tensors or _fewer(file.tensors[name], own[name]) for name in last)
    new = tuple(name for name in own if fresh and name in last)
    taken = {name: _fitting(name, file, value) for name, value in own.items() if name not in new}
    if not taken:
        raise ArgumentError(
            f"start must be for {classes} classes or have other layers, got {file.path} with nothing to reuse"
        )
    with torch.no_grad():
        for name, value in taken.items():
            own[name].copy_(value)
    return Taken(new, tuple(name for name in file.tensors if name not in own))


def _last(model: nn.Module, classes: int) -> set[str]:
    """The parameters of the last layer, if it gives a value for each class."""
    layers = [(name, layer) for name, layer in model.named_modules() if [*layer.parameters(recurse=False)]]
    name, layer = layers[-1]
    found = {f"{name}.{key}" if name else key: value for key, value in layer.named_parameters(recurse=False)}
    return set(found) if all(value.shape[:1] == (classes,) for value in found.values()) else set()


def _fewer(found: Tensor, wanted: Tensor) -> bool:
    """Whether a tensor of the last layer is one for more or fewer classes."""
    return found.ndim == wanted.ndim and found.shape[1:] == wanted.shape[1:] and found.shape != wanted.shape


def _fitting(name: str, file: File, wanted: Tensor) -> Tensor:
    """The tensor of the file, in the type that is wanted."""
    if name not in file.tensors:
        known = ", ".join([*file.tensors][:3])
        raise ArgumentError(f"start must have {name}, got {file.path} with {len(file.tensors)} others ({known}, ...)")
    found = file.tensors[name]
    if found.shape != wanted.shape:
        shapes = f"{tuple(wanted.shape)}, got {tuple(found.shape)} in {file.path}"
        raise ArgumentError(f"start must have {name} of shape {shapes}")
    if found.dtype != wanted.dtype and not (found.is_floating_point() and wanted.is_floating_point()):
        raise ArgumentError(f"start must have {name} of {wanted.dtype}, got {found.dtype} in {file.path}")
    result = found.to(wanted.dtype)
    if not bool(torch.isfinite(result).all()):
        raise ArgumentError(f"start must be finite, got another value of {name} in {file.path}")
    return result


def _safetensors() -> Any:  # noqa: ANN401  a library without types of its own
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError:
        raise MissingExtraError("train", "a .safetensors file") from None
