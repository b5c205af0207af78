"""Augmentations: functions that change demonstrated decisions at random, so that a clone does not learn them by heart.

A setting names them, `package.module:function`; the world whose observations they read is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from coterie.core.types import Array
from coterie.core.world import World


class Decisions(NamedTuple):
    """Decisions of one gradient step; an augmentation returns others of the same shapes and writes into none."""

    observation: Array  # [M, D]: flat; of a dictionary the parts one after the other
    action: Array  # [M, …]
    mask: Array  # [M, K] bool: legal actions; K = 0 where there are no masks


Augmentation = Callable[[Decisions, World, np.random.Generator], Decisions]
