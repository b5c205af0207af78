"""Show episodes: as GIF files, in a terminal, in a window."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.config.schema import Part
from coterie.core.global_random import global_state, set_global_state
from coterie.core.group import Actor
from coterie.core.types import CoterieError
from coterie.core.world import Renderable, World
from coterie.training.build import build_render_world
from coterie.training.runner import Runner, play_episodes

log = logging.getLogger("coterie")
LIMIT = 1000  # frames per video at most


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


def write_video(
    world: World,
    actors: Sequence[Actor],
    seed: int,
    path: Path,
    episodes: int = 1,
    greedy: bool = True,
    fps: int | None = None,
) -> Path:
    """Write episodes into a GIF; without `fps`, the pace fits long episodes into about 15 seconds."""
    from coterie.training.gif import GifWriter

    drawn = renderable(world)
    if path.suffix.lower() != ".gif":
        raise CoterieError(f"'{path}': videos are written as .gif")
    draw_without_screen()
    with GifWriter(path) as film:
        for number in range(episodes):
            for final in scenes(Runner(world, actors, seed + number, greedy=greedy)):
                film.add(drawn.frame(0, final))
            film.repeat()  # a pause between episodes
        film.finish(fps or min(max(film.count // 15, 4), 30))
    return path


def show_in_terminal(
    world: World, actors: Sequence[Actor], seed: int, episodes: int, greedy: bool, fps: int | None
) -> None:
    """Play episodes in the terminal; if the output is not a terminal, frames are printed one below the other."""
    drawn = renderable(world)
    fps = fps or 4
    live = sys.stdout.isatty()
    for number in range(episodes):
        runner = Runner(world, actors, seed + number, greedy=greedy)
        for step, final in enumerate(scenes(runner)):
            if live:
                print("\x1b[H\x1b[2J", end="")
            print(f"episode {number + 1}, step {step}\n{drawn.ansi(0, final)}\n", flush=True)
            if live:
                time.sleep(1 / fps)
        for name, returns in runner.tally.drain().returns.items():
            for row in returns:
                print(f"{name}: return {', '.join(f'{value:.1f}' for value in row)}")


def show_in_window(
    world: World, actors: Sequence[Actor], seed: int, episodes: int, greedy: bool, fps: int | None
) -> None:
    """Play episodes in a window until it is closed."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import pygame
    except ModuleNotFoundError:
        raise CoterieError("a window needs pygame: pip install 'coterie[window]'") from None
    drawn = renderable(world)
    try:
        pygame.display.init()  # not pygame.init(), which also opens audio devices
        if pygame.display.get_driver() == "offscreen":  # SDL's fallback, which shows nothing
            raise pygame.error("no screen")
        screen = pygame.display.set_mode(drawn.frame(0).shape[1::-1])
    except pygame.error as error:
        pygame.display.quit()
        raise CoterieError(f"no window can be opened here ({error}); 'coterie watch RUN' writes a video file") from None
    pygame.display.set_caption("coterie")
    clock = pygame.time.Clock()
    try:
        for number in range(episodes):
            for final in scenes(Runner(world, actors, seed + number, greedy=greedy)):
                if any(event.type == pygame.QUIT for event in pygame.event.get()):
                    return
                pygame.surfarray.blit_array(screen, drawn.frame(0, final).swapaxes(0, 1))
                pygame.display.flip()
                clock.tick(fps or 4)
    finally:
        pygame.display.quit()
