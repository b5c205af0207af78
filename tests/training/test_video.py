"""Films as files, in a terminal, in a window."""

import sys
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from coterie.config import registry, schema
from coterie.core.global_random import global_state
from coterie.core.types import CoterieError
from coterie.training import build, loop, video
from coterie.training.gif import GifWriter
from coterie.training.runner import Runner
from helpers import run as run_cases
from helpers.run import train


def seated(part):
    world = build.build_world(part, 1)
    loaded = schema.load("gridworld-cooperative", ["groups.team.policy=random", "groups.team.learner=null"])
    return world, [group.actor for group in build.build_groups(loaded, world)]


@pytest.fixture
def grid():
    return seated(schema.part(registry.WORLDS, {"name": "gridworld", "max_steps": 6, "grid_size": 5}, "world"))


@pytest.fixture
def odd():
    return seated(schema.Part("helpers.run:Odd", run_cases.OddSettings(lengths=(5,))))


def test_a_film_has_every_step_of_the_episode(tmp_path, grid):
    world, actors = grid
    path = video.write_video(world, actors, seed=1, path=tmp_path / "new" / "a.gif", fps=5)
    film = Image.open(path)
    scenes = len(list(video.scenes(Runner(world, actors, 1, greedy=True))))
    assert scenes == 7  # before each of six steps, and the end
    assert 1 < film.n_frames <= scenes + 1  # equal frames in a row become one that lasts longer
    assert film.info["duration"] % 200 == 0
    lasting = 0
    for number in range(film.n_frames):
        film.seek(number)
        lasting += film.info["duration"]
    assert lasting == 200 * (scenes + 1)
    assert film.size == world.frame(0).shape[1::-1]


def test_several_episodes_are_longer_and_differ(tmp_path, grid):
    world, actors = grid
    one = Image.open(video.write_video(world, actors, 1, tmp_path / "one.gif"))
    two = Image.open(video.write_video(world, actors, 1, tmp_path / "two.gif", episodes=2))
    assert two.n_frames > one.n_frames


def test_the_same_seed_gives_the_same_film(tmp_path, grid):
    world, actors = grid
    films = [
        video.write_video(world, actors, seed, tmp_path / f"{i}.gif").read_bytes() for i, seed in enumerate((1, 1, 2))
    ]
    assert films[0] == films[1] != films[2]


def test_an_episode_never_shows_the_next_one(odd):
    """A world that cannot show its end any more is left one step before it."""
    world, actors = odd
    shown = [(int(world.age[0]), over) for over in video.scenes(Runner(world, actors, 0))]
    assert shown == [(age, False) for age in range(5)]


def test_a_world_that_can_shows_its_end(grid):
    world, actors = grid
    shown = [(final, world.frame(0, final).copy()) for final in video.scenes(Runner(world, actors, 1))]
    assert [over for over, _ in shown] == [False] * 6 + [True]
    assert np.array_equal(shown[-1][1], world.frame(0, final=True))
    assert not np.array_equal(world.frame(0, final=True), world.frame(0))  # by now the next episode has begun


def test_a_terminal_shows_frames_and_returns(grid, capsys):
    world, actors = grid
    video.show_in_terminal(world, actors, seed=1, episodes=2, greedy=True, fps=60)
    said = capsys.readouterr().out
    assert "episode 1, step 0" in said
    assert "episode 2, step 5" in said
    assert said.count("team: return") == 2
    assert "\x1b[2J" not in said  # not a terminal: frames below each other


def test_a_window_opens_and_closes(grid, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame = pytest.importorskip("pygame")
    shown = []
    monkeypatch.setattr(pygame.display, "flip", lambda: shown.append(pygame.display.get_surface().get_size()))
    world, actors = grid
    video.show_in_window(world, actors, seed=1, episodes=1, greedy=True, fps=60)
    assert shown == [world.frame(0).shape[1::-1]] * 7
    assert not pygame.display.get_init()


def test_a_window_that_nobody_could_see_is_refused(grid, monkeypatch):
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "offscreen")
    world, actors = grid
    with pytest.raises(CoterieError, match=r"no window can be opened here \(no screen\); 'coterie watch RUN' writes"):
        video.show_in_window(world, actors, seed=1, episodes=1, greedy=True, fps=60)
    assert not pygame.display.get_init()


def test_a_world_without_pictures_says_so(odd, tmp_path):
    world, actors = odd
    with pytest.raises(CoterieError, match="'odd' cannot be drawn"):
        video.write_video(world, actors, 0, tmp_path / "a.gif")


def test_a_film_is_written_frame_by_frame(tmp_path):
    """Colours and rectangles are right, and memory does not grow with the number of frames."""
    random = np.random.default_rng(0)
    background = random.integers(0, 4, size=(60, 80, 3), dtype=np.uint8) * 60
    pictures = []
    for step in range(12):
        picture = background.copy()
        picture[10 + step : 20 + step, 5:15] = (250, 10, 10)
        pictures.append(picture)
    with GifWriter(tmp_path / "a.gif") as film:
        for picture in pictures:
            film.add(picture)
        film.repeat()
        film.finish(fps=10)
    shown = Image.open(tmp_path / "a.gif")
    assert (shown.n_frames, shown.info["loop"]) == (12, 0)
    for number, picture in enumerate(pictures):
        shown.seek(number)
        assert shown.info["duration"] == (200 if number == 11 else 100)
        np.testing.assert_allclose(np.asarray(shown.convert("RGB")), picture, atol=30)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


def test_a_film_that_fails_leaves_no_file(tmp_path):
    def write():
        with GifWriter(tmp_path / "a.gif") as film:
            for width in (4, 5):
                film.add(np.zeros((4, width, 3), np.uint8))

    with pytest.raises(ValueError, match="same size"):
        write()
    assert not list(tmp_path.iterdir())


def test_memory_does_not_grow_with_a_film(tmp_path):
    frame = np.zeros((200, 200, 3), np.uint8)
    tracemalloc.start()
    with GifWriter(tmp_path / "a.gif") as film:
        for step in range(200):
            frame[step] = step
            film.add(frame)
        film.finish(30)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * frame.nbytes


# Before training ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["gymnasium", "pygame"])
def test_a_package_that_drawing_lacks_is_named_before_training(missing, monkeypatch, caplog):
    pytest.importorskip("gymnasium")
    monkeypatch.setitem(sys.modules, missing, None)
    with_pole = schema.load("cartpole-ppo").world
    video.warn_undrawable(with_pole)
    (said,) = caplog.messages
    assert "no video can be made" in said
    assert missing in said
    assert "pip install 'coterie[worlds,window]'" in said
    assert "train.video=false" in said


def test_the_warning_comes_before_the_first_step(tmp_path, monkeypatch):
    def watch(training, *_):
        raise CoterieError("the training begins")

    said = []
    monkeypatch.setattr(loop, "warn_undrawable", said.append)
    monkeypatch.setattr(loop, "loop", watch)
    for number, drawn in enumerate(("true", "false")):
        with pytest.raises(CoterieError, match="the training begins"):
            train(tmp_path / str(number), f"train.video={drawn}")
    assert [part.name for part in said] == ["gridworld"]


def test_drawing_on_trial_says_nothing_where_it_works_and_draws_no_global_numbers(caplog):
    state = repr(global_state())
    for name in ("gridworld-cooperative", "auction-neutral"):
        video.warn_undrawable(schema.load(name).world)
    assert not caplog.messages
    assert repr(global_state()) == state
