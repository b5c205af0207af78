"""Atomic checkpoints: safetensors for arrays of numbers, JSON for texts and the rest, checksums for both; never pickle.

A checkpoint is a directory. It is written under a temporary name, synced to disk, then renamed, so a
directory with its final name is complete. A manifest holds the SHA-256 of each file; a mismatch is an error that names
the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.types import Array, CoterieError, State

ARRAYS, VALUES, MANIFEST = "arrays.safetensors", "state.json", "manifest.json"


class CheckpointError(CoterieError):
    """A checkpoint is missing, truncated or altered."""


def save(directory: Path, state: State) -> None:
    """Write a state as a directory, atomically."""
    from safetensors.numpy import save as pack_arrays

    arrays: dict[str, Array] = {}
    values = _split(state, "", arrays)
    temporary, replaced = (directory.with_name(f".{directory.name}{end}.tmp") for end in ("", ".old"))
    for left in (temporary, replaced):
        if left.exists():
            shutil.rmtree(left)  # by a run that was killed while saving
    temporary.mkdir(parents=True)
    contents = {ARRAYS: pack_arrays(arrays), VALUES: json.dumps(values).encode()}
    manifest = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    contents[MANIFEST] = json.dumps(manifest).encode()
    try:
        for name, data in contents.items():
            with naming(directory), open(temporary / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # a full disk needs the space
        raise
    _sync(temporary)
    if directory.exists():  # the same step saved again; to delete takes longer than to rename
        directory.rename(replaced)
    temporary.rename(directory)
    _sync(directory.parent)
    if replaced.exists():
        shutil.rmtree(replaced)


@contextmanager
def fitting(path: str) -> Iterator[None]:
    """Name the part of the config, by its path, whose saved state cannot be loaded."""
    from coterie.config.schema import ConfigError  # what reads checkpoints does without pydantic and OmegaConf

    try:
        yield
    except ValueError as error:
        raise ConfigError(f"the checkpoint does not fit this config: {path}: {error}") from None
    except KeyError as error:
        raise ConfigError(
            f"the checkpoint does not fit this config: {path}: its saved state has no {error}. Either the config was "
            "changed, or an earlier version of Coterie saved this run: finish it with that version, or begin a new run "
            "from its policies (groups.NAME.policy.run=RUN)"
        ) from None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of writing, which do not: a full disk is reported without it."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def load(directory: Path) -> State:
    """Read a state after verifying its checksums."""
    from safetensors.numpy import load as unpack_arrays

    contents = _checked(directory)
    arrays = unpack_arrays(contents[ARRAYS])
    state: State = _join(json.loads(contents[VALUES]), "", arrays)
    return state


def _checked(directory: Path) -> dict[str, bytes]:
    try:
        manifest = dict(json.loads((directory / MANIFEST).read_bytes()))
        contents = {name: (directory / name).read_bytes() for name in (ARRAYS, VALUES)}
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"checkpoint '{directory.name}': '{Path(error.filename).name}' is missing") from None
    except (ValueError, TypeError):  # not JSON, or not an object
        raise CheckpointError(f"checkpoint '{directory.name}': {MANIFEST} is damaged") from None
    for name, data in contents.items():
        if hashlib.sha256(data).hexdigest() != manifest.get(name):
            raise CheckpointError(f"checkpoint '{directory.name}': {name} is truncated or altered (checksum differs)")
    return contents


def _split(value: Any, path: str, arrays: dict[str, Array]) -> Any:
    """Move the arrays of a nested state into a flat dict, leaving placeholders."""
    if isinstance(value, dict):
        parts = {key: _split(item, f"{path}/{key}", arrays) for key, item in value.items()}
        if all(isinstance(key, str) for key in parts):
            return parts
        if all(type(key) is int for key in parts):  # parameters in the state of PyTorch's optimisers
            return {"$numbered": {str(key): part for key, part in parts.items()}}
        raise CheckpointError(f"{path}: the keys of a saved dict must be all strings or all integers, got {[*value]}")
    if (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.Tensor):
        try:
            array = value.detach().cpu().numpy()
        except TypeError:  # bfloat16 and other types that NumPy lacks
            raise CheckpointError(f"{path}: a checkpoint holds no {value.dtype}; save it as float32") from None
        return {"$tensor": _split(array, path, arrays)}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return {"$texts": _texts(value, path), "shape": list(value.shape)}
    if isinstance(value, np.ndarray):
        arrays[path] = np.ascontiguousarray(value)
        return {"$array": path, "shape": list(value.shape)}  # contiguity turns a scalar into a vector
    if isinstance(value, list):
        return [_split(item, f"{path}/{i}", arrays) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": _split([*value], path, arrays)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(
        f"{path}: a checkpoint holds arrays, tensors, numbers, texts, and dicts, lists and tuples of these, not "
        f"{type(value).__name__}"
    )


def _texts(array: Array, path: str) -> list[str]:
    """The texts of an array, in order; other objects are refused."""
    found = array.ravel().tolist()
    for item in found:
        if not isinstance(item, str):
            raise CheckpointError(
                f"{path}: a checkpoint holds arrays of numbers and of texts, not of {type(item).__name__}"
            )
    return found


def _join(value: Any, path: str, arrays: dict[str, Array]) -> Any:
    if isinstance(value, dict):
        if "$texts" in value:
            texts = np.empty(len(value["$texts"]), object)
            texts[:] = value["$texts"]
            return texts.reshape(value["shape"])
        if "$array" in value:
            return arrays[value["$array"]].reshape(value["shape"])
        if "$tensor" in value:
            import torch  # what saves no tensors is read without PyTorch

            return torch.from_numpy(_join(value["$tensor"], path, arrays).copy())
        if "$tuple" in value:
            return tuple(_join(value["$tuple"], path, arrays))
        if "$numbered" in value:
            return {int(key): _join(item, f"{path}/{key}", arrays) for key, item in value["$numbered"].items()}
        return {key: _join(item, f"{path}/{key}", arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_join(item, f"{path}/{i}", arrays) for i, item in enumerate(value)]
    return value


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
