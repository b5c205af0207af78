"""Show episodes: as GIF and MP4 files, in a terminal, in a window; captions are in `captions.py`."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.config.schema import Part
from coterie.core.global_random import global_state, set_global_state
from coterie.core.group import Actor
from coterie.core.types import Array, CoterieError
from coterie.core.world import Renderable, World
from coterie.training.build import build_render_world
from coterie.training.runner import Runner, play_episodes
from coterie.video import captions, mp4

log = logging.getLogger("coterie")
LIMIT = 1000  # frames per video at most
SHORT, MOST_EPISODES = 12, 6  # a video of fewer frames has further episodes, at most this many in all
SHORTEST, LONGEST = 4, 15  # seconds that a video should last


@dataclass(frozen=True)
class Showing:
    """Settings for showing episodes."""

    episodes: int | None = 1  # None: one, or several where one is over in a few steps
    greedy: bool = True
    fps: float | None = None  # frames per second; None: a pace that suits the length
    kinds: Mapping[str, str] = field(default_factory=dict)  # group -> the kind of its policy, for captions


def scenes(runner: Runner) -> Iterator[bool]:
    """Play one episode of a world with one environment, yielding whenever there is something to draw.

    Yields False before every step. If the world draws final scenes, yields True once after the last step, when the
    environment has already been reset.
    """
    steps = play_episodes(runner)
    for _ in range(LIMIT):
        yield False
        next(steps)
        if runner.timestep.ended[0]:
            if isinstance(runner.world, Renderable) and runner.world.draws_final:
                yield True
            return


def renderable(world: World) -> Renderable:
    """The world, or an error if it cannot be drawn."""
    if not isinstance(world, Renderable):
        raise CoterieError(f"'{type(world).__name__.lower()}' cannot be drawn: it lacks frame, ansi or draws_final")
    return world


def draw_without_screen() -> None:
    """External environments draw with SDL, which would look for a screen."""
    if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def warn_undrawable(part: Part) -> None:
    """Draw one picture of a new world and warn if that fails, so that a missing package is named before training."""
    draw_without_screen()
    before = global_state()  # some external environments draw from the global generators
    try:
        world = build_render_world(part)
        if isinstance(world, Renderable):
            world.reset(0)
            world.frame(0)
    except Exception as error:  # a renderer may be a user's or a third party's, and the training does not need it
        reason = str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
        lacks = isinstance(error, ImportError) or type(error).__name__ == "DependencyNotInstalled"  # Gymnasium's
        cure = "install it with pip install 'coterie[worlds,window]', or set train.video=false"
        log.warning("no video can be made of this world: %s; %s", reason, cure if lacks else "set train.video=false")
    finally:
        set_global_state(before)


def video_paths(path: Path) -> list[Path]:
    """The files of a video: the GIF, and an MP4 next to it where that can be written."""
    return [path, path.with_suffix(".mp4")] if mp4.available() else [path]


def write_video(
    world: World, actors: Sequence[Actor], seed: int, paths: Sequence[Path], showing: Showing = Showing()
) -> None:
    """Write episodes into a GIF, an MP4, or both at once."""
    from coterie.video.gif import GifWriter

    drawn = renderable(world)
    writers: dict[str, Any] = {".gif": GifWriter, ".mp4": mp4.Mp4Writer}
    for path in paths:
        if path.suffix.lower() not in writers:
            raise CoterieError(f"'{path}': videos are written as .gif or .mp4")
    draw_without_screen()
    remarks = [sign for sign in captions.signs(world) if not sign.text]
    captioned = captions.Captioned(captions.who_is_who(world, actors, showing.kinds), remarks)
    with ExitStack() as stack:
        writing: list[GifWriter | mp4.Mp4Writer] = [
            stack.enter_context(writers[path.suffix.lower()](path)) for path in paths
        ]
        for number in _episode_numbers(showing, writing[0]):
            runner = Runner(world, actors, seed + number, greedy=showing.greedy)
            for step, final in enumerate(scenes(runner)):
                episode = (number + 1, showing.episodes)
                words = captions.describe_step(episode, step, running_returns(runner, final))
                for writer in writing:
                    writer.add(captioned.frame(drawn.frame(0, final), words))
            for writer in writing:
                writer.repeat()  # a pause between episodes
        for writer in writing:
            writer.finish(showing.fps or pace(writer.count))


def _episode_numbers(showing: Showing, writer: Any) -> Iterator[int]:
    """The episodes of a video: as many as asked for, or until it is long enough."""
    number = 0
    while number < showing.episodes if showing.episodes is not None else number < MOST_EPISODES:
        yield number
        number += 1
        if showing.episodes is None and writer.count >= SHORT:
            return


def pace(frames: int) -> float:
    """Frames per second: four, fewer for a few frames that would be over at once, more for many."""
    return min(max(frames / LONGEST, min(4.0, frames / SHORTEST)), 30.0)


def running_returns(runner: Runner, final: bool) -> dict[str, float]:
    """Each group's mean return in the running episode; after its last step, in the one that has ended.

    Where two agents of a group win what the other loses, the mean is always 0: both have their own.
    """
    shown: dict[str, float] = {}
    for spec in runner.tally.group_specs:
        returns = (runner.tally.returns[spec.group][-1] if final else runner.tally.running[spec.group])[0]
        if len(returns) == 2 and returns[0] == -returns[1] != 0:
            shown |= zip(spec.agents, map(float, returns), strict=True)
        else:
            shown[spec.group] = float(returns.mean())
    return shown


def show_in_terminal(world: World, actors: Sequence[Actor], seed: int, showing: Showing = Showing()) -> None:
    """Play episodes in the terminal; if the output is not a terminal, frames are printed one below the other."""
    drawn = renderable(world)
    live = sys.stdout.isatty()
    legend = captions.signs(world)
    width = shutil.get_terminal_size().columns
    below = captions.legend_lines(legend, captions.who_is_who(world, actors, showing.kinds), captions.in_colour())
    for number in range(showing.episodes or 1):
        runner = Runner(world, actors, seed + number, greedy=showing.greedy)
        for step, final in enumerate(scenes(runner)):
            if live:
                print("\x1b[H\x1b[2J", end="")
            head = captions.describe_step((number + 1, showing.episodes), step, running_returns(runner, final))
            head = "\n".join(captions.in_lines(head, lambda text: len(text) <= width))
            scene = captions.without_step(drawn.ansi(0, final), step)
            print(f"{head}\n\n{captions.shown(scene, legend)}\n")
            if live or step == 0:
                print("\n".join(below), end="\n\n")
            sys.stdout.flush()
            if live:
                time.sleep(1 / (showing.fps or 4))
        for name, returns in runner.tally.drain().returns.items():
            for row in returns:
                print(f"{name}: return {', '.join(f'{round(float(value), 2) + 0.0:.2f}' for value in row)}")


def show_in_window(world: World, actors: Sequence[Actor], seed: int, showing: Showing = Showing()) -> None:
    """Play episodes in a window until it is closed."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import pygame
    except ModuleNotFoundError:
        raise CoterieError("a window needs pygame: pip install 'coterie[window]'") from None
    drawn = renderable(world)
    remarks = [sign for sign in captions.signs(world) if not sign.text]
    captioned = captions.Captioned(captions.who_is_who(world, actors, showing.kinds), remarks)

    def picture(number: int, step: int, runner: Runner, final: bool) -> Array:
        words = captions.describe_step((number + 1, showing.episodes), step, running_returns(runner, final))
        return captioned.frame(drawn.frame(0, final), words).swapaxes(0, 1)

    try:
        pygame.display.init()  # not pygame.init(), which also opens audio devices
        if pygame.display.get_driver() == "offscreen":  # SDL's fallback, which shows nothing
            raise pygame.error("no screen")
        size = picture(0, 0, Runner(world, actors, seed, greedy=showing.greedy), False).shape[:2]
        screen = pygame.display.set_mode(size)
    except pygame.error as error:
        pygame.display.quit()
        raise CoterieError(f"no window can be opened here ({error}); 'coterie watch RUN' writes a video file") from None
    pygame.display.set_caption("coterie")
    clock = pygame.time.Clock()
    try:
        for number in range(showing.episodes or 1):
            runner = Runner(world, actors, seed + number, greedy=showing.greedy)
            for step, final in enumerate(scenes(runner)):
                if any(event.type == pygame.QUIT for event in pygame.event.get()):
                    return
                pygame.surfarray.blit_array(screen, picture(number, step, runner, final))
                pygame.display.flip()
                clock.tick(showing.fps or 4)
    finally:
        pygame.display.quit()
