"""Writes MP4 videos with the ffmpeg that the package `imageio-ffmpeg` brings along."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from types import TracebackType

from coterie.core.types import Array, CoterieError

RATE = 10  # frames per second while writing; the true pace is known at the end
CURE = "pip install 'coterie[video]'"


def available() -> bool:
    """Whether MP4 files can be written."""
    return importlib.util.find_spec("imageio_ffmpeg") is not None


class Mp4Writer:
    """An MP4 under construction; a context manager that leaves no file behind if it fails.

    Frames go to ffmpeg one by one. How long they last is set at the end, by copying the stream with other times.
    """

    def __init__(self, path: Path) -> None:
        if not available():
            raise CoterieError(f"'{path}': MP4 files need imageio-ffmpeg: {CURE}; or name a .gif")
        self.path, self.partial = path, path.with_name(f".{path.stem}.partial.mp4")
        self.count = 0  # frames added
        self._last: Array | None = None
        self._frames: Generator[None, Array | None, None] | None = None
        path.parent.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Mp4Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._close()
        self.partial.unlink(missing_ok=True)

    def add(self, frame: Array) -> None:
        """Append a frame `[height, width, 3]` uint8 with even sides."""
        import imageio_ffmpeg

        if self._last is not None and self._last.shape != frame.shape:
            raise ValueError(f"frames must have the same size, got {self._last.shape} and {frame.shape}")
        if self._frames is None:
            size = (frame.shape[1], frame.shape[0])
            self._frames = imageio_ffmpeg.write_frames(
                str(self.partial),
                size,
                fps=RATE,
                quality=8,
                macro_block_size=2,
                output_params=["-threads", "1"],
                ffmpeg_log_level="fatal",  # of a file that it could not write, `finish` says so
            )
            self._frames.send(None)
        self.count += 1
        self._last = frame.copy()
        self._frames.send(self._last)

    def repeat(self) -> None:
        """Show the last frame once more."""
        if self._last is not None:
            self.add(self._last)

    def finish(self, fps: float) -> None:
        """Set how long frames last, and give the file its name."""
        import imageio_ffmpeg

        self.repeat()  # players leave out how long the last frame lasts
        self._close()
        paced = self.partial.with_suffix(".paced.mp4")
        program = imageio_ffmpeg.get_ffmpeg_exe()
        quiet = ["-loglevel", "error", "-y", "-itsscale", str(RATE / fps), "-i", str(self.partial), "-c", "copy"]
        try:
            done = subprocess.run(
                [program, *quiet, "-movflags", "faststart", str(paced)], capture_output=True, text=True
            )
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                raise CoterieError(f"'{self.path}': ffmpeg failed: {reason}; has the disk free space?")
            os.replace(paced, self.path)
        finally:
            paced.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._frames is not None:
            self._frames.close()
            self._frames = None
