"""Pictures made grey, made smaller, and stacked with earlier ones, before they become observations.

Every number is exact: greys are sums of whole numbers, and a smaller picture's pixel is the mean of the area that it
covers, computed from whole numbers and rounded once. A replayed episode therefore shows the same bytes.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from coterie.core.types import Array, CoterieError
from coterie.worlds.adapters.batch import InvalidEnvOutput
from coterie.worlds.adapters.external import ExternalSettings
from coterie.worlds.adapters.spaces import Channels, channels_are_last

RED_GREEN_BLUE = np.array([299, 587, 114], np.uint32)  # thousandths of a grey (ITU-R BT.601)


class Frames:
    """The observations of one agent with `grey`, `resize` and `frame_stack` applied, channels first."""

    def __init__(self, space: Any, settings: ExternalSettings, channels: Channels) -> None:
        self.stack, self.grey, self.size = settings.frame_stack, settings.grey, settings.resize
        if not isinstance(space, gymnasium.spaces.Box):
            raise CoterieError(
                f"world.frame_stack, world.grey and world.resize need an array as the observation, got {space}"
            )
        self.source = space
        picture = len(space.shape) in (2, 3) and space.dtype == np.uint8
        if (self.grey or self.size) and not picture:
            raise CoterieError(
                f"world.grey and world.resize need pictures of bytes, [height, width] or with colours, got {space}"
            )
        self.last = len(space.shape) == 3 and (
            channels == "last" or (channels == "auto" and channels_are_last(space.shape))
        )
        self.flat = len(space.shape) == 2 and picture  # without an axis of channels
        low, high = (self._channels_first(np.asarray(bound)) for bound in (space.low, space.high))
        if self.grey and low.shape[0] not in (1, 3, 4):
            raise CoterieError(f"world.grey needs 1, 3 or 4 channels, got {low.shape[0]} in {space}")
        self.weights: tuple[Array, Array] | None = None
        if self.size is not None:
            exact = np.float32 if 255 * low.shape[1] * low.shape[2] < 2**24 else np.float64  # holds every sum
            self.weights = (overlaps(low.shape[1], self.size[0], exact), overlaps(low.shape[2], self.size[1], exact).T)
            self.area = low.shape[1] * low.shape[2]
        if picture:
            frame = self._frame(np.zeros(space.shape, np.uint8))
            low, high = np.zeros_like(frame), np.full_like(frame, 255)
        repeats = (self.stack, *[1] * (low.ndim - 1))
        self.space = gymnasium.spaces.Box(np.tile(low, repeats), np.tile(high, repeats), dtype=space.dtype.type)
        self.channels = len(low)  # of one frame
        self.frames = np.zeros(self.space.shape, space.dtype)
        self.clear()

    def clear(self) -> None:
        """Forget earlier frames: an episode starts."""
        self.started = False

    def add(self, observation: Any) -> Array:
        """The latest frames, the newest last; the first observation of an episode fills all of them."""
        value, source = np.asarray(observation), self.source
        if value.shape != source.shape or not np.can_cast(value.dtype, source.dtype, "same_kind"):
            raise InvalidEnvOutput(f"observation {source.dtype} {source.shape}", f"{value.dtype} {value.shape}")
        frame = self._frame(value)
        if self.started:
            self.frames[: -self.channels] = self.frames[self.channels :].copy()
            self.frames[-self.channels :] = frame
        else:
            self.frames[:] = np.tile(frame, (self.stack, *[1] * (frame.ndim - 1)))
        self.started = True
        return self.frames

    def _channels_first(self, value: Array) -> Array:
        if self.flat:
            return value[None]
        return np.moveaxis(value, 2, 0) if self.last else value

    def _frame(self, value: Array) -> Array:
        frame = self._channels_first(value)
        if self.grey and len(frame) > 1:
            frame = to_grey(frame)
        if self.weights is not None:
            total = self.weights[0] @ frame.astype(self.weights[0].dtype) @ self.weights[1]
            frame = ((2 * total.astype(np.int64) + self.area) // (2 * self.area)).astype(np.uint8)
        return frame


def to_grey(frame: Array) -> Array:
    """Red, green, blue (and opacity, which is ignored) `[3 or 4, H, W]` as one channel `[1, H, W]`, rounded."""
    total = np.tensordot(RED_GREEN_BLUE, frame[:3].astype(np.uint32), axes=1)
    return ((total + 500) // 1000).astype(np.uint8)[None]


def overlaps(before: int, after: int, dtype: Any) -> Array:
    """The share of each old pixel in each new pixel, `[after, before]`, in whole numbers that add up to `before`."""
    start = np.arange(after)[:, None] * before, np.arange(before)[None] * after
    overlap = np.minimum(start[0] + before, start[1] + after) - np.maximum(*start)
    return np.maximum(overlap, 0).astype(dtype)
