"""Trees of arrays: map, take, join and save them.

A tree is an array, None, a dict of trees, or a NamedTuple of trees. Observations, advice, traces and the rows of
decisions are such trees, so that whoever carries them need not know what is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coterie.core.types import Array, Tree, blank


def map_tree(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply `function` to the arrays of trees with the same structure; None stays None."""
    first = trees[0]
    if first is None:
        return None
    if isinstance(first, dict):
        return {key: map_tree(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        return type(first)(*(map_tree(function, *parts) for parts in zip(*trees, strict=True)))
    return function(*trees)


def take(tree: Any, *index: Any) -> Any:
    """`array[index]` of every array: a view for slices, a copy for arrays of indices."""
    return map_tree(lambda array: array[index], tree)


def assign(into: Any, index: Any, tree: Any) -> None:
    """Write a tree into rows of another one; where `tree` is None, or `into` has no room for it, nothing is written."""
    if into is None or tree is None:
        return
    if isinstance(into, dict):
        if into.keys() != tree.keys():
            raise ValueError(f"expected the keys {sorted(into)}, got {sorted(tree)}")
        for key, array in tree.items():
            assign(into[key], index, array)
    elif isinstance(into, tuple):
        for part, array in zip(into, tree, strict=True):
            assign(part, index, array)
    else:
        into[index] = tree


def join(trees: Sequence[Any], axis: int = 0) -> Any:
    """Concatenate trees with the same structure; a single one is not copied."""
    if len(trees) == 1:
        return trees[0]
    return map_tree(lambda *arrays: np.concatenate(arrays, axis=axis), *trees)


def room(rows: int, tree: Any) -> Any:
    """Blank arrays for so many rows like those of a tree."""
    return map_tree(lambda array: blank((rows, *array.shape), array.dtype), tree)


def to_state(tree: Any) -> Any:
    """A copy for a checkpoint, in which NamedTuples are dicts."""
    if isinstance(tree, tuple):
        return {name: to_state(part) for name, part in tree._asdict().items()}  # type: ignore[attr-defined]  # NamedTuple
    if isinstance(tree, dict):
        return {key: to_state(part) for key, part in tree.items()}
    return None if tree is None else tree.copy()


def arrays_of(tree: Tree) -> dict[str, Array]:
    """The arrays of an observation by name, as in `entries_of`; a single one has the name ""."""
    return tree if isinstance(tree, dict) else {"": tree}


def leading(tree: Tree) -> Array:
    """One array of the tree, to read leading axes from."""
    return next(iter(arrays_of(tree).values()))
