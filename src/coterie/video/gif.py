"""Writes animated GIFs frame by frame: nothing but the last frame is held in memory."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import numpy as np
from PIL import GifImagePlugin, Image

from coterie.core.types import Array

COLOURS = 128  # of one frame
LOOP = b"!\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"  # repeat without end


class GifWriter:
    """A GIF under construction; a context manager that leaves no file behind if it fails.

    Every frame is the rectangle that differs from the frame before. A frame that does not differ makes the one before
    last longer. How long a frame lasts is filled in at the end, when the number of frames is known.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.partial = path, path.with_name(path.name + ".partial")
        self.count = 0  # frames added
        self._last: Array | None = None
        self._lasting: list[list[int]] = []  # position of each written frame's duration, and for how many frames
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.partial.open("wb")

    def __enter__(self) -> GifWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        try:
            self._file.close()
        finally:  # a full disk needs the space
            self.partial.unlink(missing_ok=True)

    def add(self, frame: Array) -> None:
        """Append a frame `[height, width, 3]` uint8."""
        self.count += 1
        box = (0, 0, frame.shape[1], frame.shape[0])
        if self._last is None:
            header = GifImagePlugin.getheader(Image.fromarray(frame).quantize(COLOURS))[0]
            self._file.write(b"".join(header) + LOOP)
        elif self._last.shape != frame.shape:
            raise ValueError(f"frames must have the same size, got {self._last.shape} and {frame.shape}")
        else:
            changed = (self._last != frame).any(axis=2)
            rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
            if not len(rows):
                self._lasting[-1][1] += 1
                return
            box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
        picture = Image.fromarray(np.ascontiguousarray(frame[box[1] : box[3], box[0] : box[2]])).quantize(COLOURS)
        self._file.write(b"!\xf9\x04\x04")
        self._lasting.append([self._file.tell(), 1])
        self._file.write(b"\0\0\0\0")  # duration, no transparency
        self._file.write(b"".join(GifImagePlugin.getdata(picture, box[:2], include_color_table=True)))
        self._last = frame.copy()

    def repeat(self) -> None:
        """Show the last frame once more."""
        self.count += 1
        self._lasting[-1][1] += 1

    def finish(self, fps: float) -> None:
        """Write how long frames last, and give the file its name."""
        self._file.write(b";")
        for position, frames in self._lasting:
            self._file.seek(position)
            self._file.write(min(round(frames * 100 / fps), 65535).to_bytes(2, "little"))
        self._file.close()
        os.replace(self.partial, self.path)
