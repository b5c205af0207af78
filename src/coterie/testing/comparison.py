"""Comparisons of arrays and states that raise `ContractError` with a location, the expected and the actual value."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from coterie.core import lookup
from coterie.core.types import Array, CoterieError, State, Text
from coterie.runs import checkpoint


class ContractError(CoterieError):
    """A world, policy or learner violates its contract."""


def expect(condition: Any, location: str, expected: str, got: Any) -> None:
    """Raise `ContractError` unless the condition holds."""
    if not condition:
        raise ContractError(f"{location}: expected {expected}, got {got}")


def expect_inherits(part: object, base: type) -> None:
    """Raise `ContractError` unless `part` inherits from a base class and has the attributes that it declares."""
    try:
        lookup.refuse_wrong(type(part), base, type(part).__name__)
        lookup.check_attributes(part, base)
    except (ValueError, lookup.WrongClass) as error:
        raise ContractError(str(error)) from None


@dataclass(frozen=True)
class Location:
    """A step and an agent type; `expect_all` adds agent, copy and entry of the first violation."""

    step: str
    agent_type: str
    agents: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.step}, agent type {self.agent_type!r}" if self.agent_type else self.step

    def expect_all(self, valid: Array, expected: Array | str, got: Array | str, name: str = "") -> None:
        """Raise `ContractError` unless all entries of `valid` `[N, A, …]` are True."""
        if valid.all():
            return
        copy, *rest = index = tuple(int(i) for i in np.argwhere(~valid)[0])
        agent = f", agent {self.agents[rest[0]]!r}" if rest else ""
        entry = f", entry {rest[1:]}" if rest[1:] else ""
        wanted, found = (x if isinstance(x, str) else x[index] for x in (expected, got))
        raise ContractError(f"{self}{agent}, copy {copy}{entry}: expected {name}{wanted}, got {found}")


def check_array(location: str, name: str, array: Any, shape: tuple[Any, ...], dtype: Any) -> None:
    """Raise `ContractError` unless `array` is an array of that shape and type."""
    expect(isinstance(array, np.ndarray), location, f"{name} to be an array", type(array).__name__)
    expect(array.shape == shape, location, f"{name} of shape {shape}", array.shape)
    expect(array.dtype == np.dtype(dtype), location, f"{name} of type {dtype}", array.dtype)


def text_valid(space: Text, array: Array) -> Array:
    """Flags of the entries that are texts inside the space."""
    valid = [isinstance(text, str) and len(text) <= space.max_length for text in array.ravel().tolist()]
    return np.array(valid, bool).reshape(array.shape)


def leaves(tree: Any, path: str = "") -> dict[str, Array]:
    """Copies of all arrays and numbers in nested dicts and dataclasses, by path."""
    if is_dataclass(tree):
        tree = vars(tree)
    if isinstance(tree, dict):
        return {key: a for name, part in tree.items() for key, a in leaves(part, f"{path}/{name}".lstrip("/")).items()}
    return {path: np.array(tree)} if isinstance(tree, np.ndarray | float | int) else {}


def expect_same_start(title: str, first: Any, second: Any) -> None:
    """Raise `ContractError` unless two parts that were built alike begin with the same numbers."""
    before, after = leaves(first), leaves(second)
    apart = [key for key in before if key not in after or not np.array_equal(before[key], after[key], equal_nan=True)]
    if apart:
        raise ContractError(
            f"{title}: first weights ({apart[0]}) do not follow from the seed, so that a run cannot be repeated; draw "
            "them from `group_spec.seed`, those of a network of one's own from PyTorch's global generator"
        )


def expect_equal(title: str, expected: Any, got: Any) -> None:
    """Raise `ContractError` unless two nested structures are equal bit for bit."""
    left, right = leaves(expected), leaves(got)
    expect(left.keys() == right.keys(), title, f"{[*left]}", [*right])
    for path, array in left.items():
        expect(np.array_equal(array, right[path]), f"{title}: {path}", f"{array}", right[path])


def through_checkpoint(state: State) -> State:
    """The state after saving it to a checkpoint and loading it."""
    with TemporaryDirectory() as folder:
        checkpoint.save(Path(folder) / "state", state)
        return checkpoint.load(Path(folder) / "state")
