"""Films as files, in a terminal, in a window."""

import re
import resource
import sys
import tracemalloc

import numpy as np
import pytest
from PIL import Image

from coterie.config import registry, schema
from coterie.core.global_random import global_state
from coterie.core.types import CoterieError
from coterie.training import build, loop
from coterie.training.players import policy_kind
from coterie.training.runner import Runner
from coterie.video import captions, mp4
from coterie.video import films as video
from coterie.video.gif import GifWriter
from coterie.worlds.adapters.external import picture_to_ansi
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


def test_a_video_has_every_step_of_the_episode(tmp_path, grid):
    world, actors = grid
    video.write_video(world, actors, 1, [tmp_path / "new" / "a.gif"], video.Showing(fps=5))
    video_file = Image.open(tmp_path / "new" / "a.gif")
    scenes = len(list(video.scenes(Runner(world, actors, 1, greedy=True))))
    assert scenes == 7  # before each of six steps, and the end
    assert video_file.n_frames == scenes  # every caption has its step
    assert video_file.info["duration"] % 200 == 0
    lasting = 0
    for number in range(video_file.n_frames):
        video_file.seek(number)
        lasting += video_file.info["duration"]
    assert lasting == 200 * (scenes + 1)
    width, height = video_file.size
    assert width >= captions.SMALLEST
    assert height > width  # captions above and below a square


def test_small_pictures_are_enlarged():
    assert captions.enlarged(Image.new("RGB", (100, 60))).size == (500, 300)
    assert captions.enlarged(Image.new("RGB", (481, 300))).size == (481, 300)


@pytest.mark.slow
def test_several_episodes_are_longer_and_differ(tmp_path, grid):
    world, actors = grid
    lengths = []
    for episodes in (1, 2, None):  # None: a second one, since one is over in seven frames
        video.write_video(world, actors, 1, [tmp_path / "a.gif"], video.Showing(episodes))
        lengths.append(Image.open(tmp_path / "a.gif").n_frames)
    assert lengths == [7, 14, 14]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_video(tmp_path, grid):
    world, actors = grid
    video_files = []
    for seed in (1, 1, 2):
        video.write_video(world, actors, seed, [tmp_path / "a.gif"])
        video_files.append((tmp_path / "a.gif").read_bytes())
    assert video_files[0] == video_files[1] != video_files[2]


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
    showing = video.Showing(2, fps=60, kinds={"team": "random"})
    video.show_in_terminal(world, actors, 1, showing)
    said = capsys.readouterr().out
    assert "episode 1 of 2   step 0   return  team 0.00" in said
    assert "episode 2 of 2   step 5   return  team -" in said
    assert said.count("team: return") == 2
    assert "\nstep " not in said  # it stands above every scene
    assert captions.describe_step((1, None), 0, {"a": -0.001}) == "episode 1   step 0   return  a 0.00"
    assert captions.without_step("step 3, holds nothing\n..", 3) == "holds nothing\n.."
    assert captions.without_step("step 3\n..", 2) == "step 3\n.."
    assert "team: agent_0, agent_1 (random)\n0 agent_0   1 agent_1   * target   # wall   + several agents" in said
    assert "\x1b" not in said  # not a terminal: frames below each other, without colours


def test_a_terminal_shows_colours_where_it_can(grid, capsys, monkeypatch):
    world, actors = grid
    monkeypatch.setenv("FORCE_COLOR", "1")
    video.show_in_terminal(world, actors, 1, video.Showing(fps=60))
    said = capsys.readouterr().out
    blue = captions.paint("0", (0, 114, 178))
    assert blue in said
    assert f"{blue} agent_0" in said  # the legend
    assert "step 0" in said  # not a sign: it stands in a line of words
    monkeypatch.setenv("NO_COLOR", "1")
    video.show_in_terminal(world, actors, 1, video.Showing(fps=60))
    assert "\x1b" not in capsys.readouterr().out


def test_pictures_of_third_party_worlds_leave_no_control_characters_in_a_file(grid, capsys, monkeypatch):
    world, actors = grid
    monkeypatch.setattr(type(world), "ansi", lambda self, copy, final=False: picture_to_ansi(self.frame(copy, final)))
    video.show_in_terminal(world, actors, 1)
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    assert "@@@" in plain  # light cells of the grid
    monkeypatch.setenv("FORCE_COLOR", "1")
    video.show_in_terminal(world, actors, 1, video.Showing(fps=60))
    assert "▀" in capsys.readouterr().out


def test_returns_of_fractions_keep_two_decimals(grid, capsys):
    world, actors = grid
    video.show_in_terminal(world, actors, 1)
    (last,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("team: return")]
    assert re.fullmatch(r"team: return (-?\d+\.\d\d, )+-?\d+\.\d\d", last)


def test_a_window_opens_and_closes(grid, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame = pytest.importorskip("pygame")
    shown = []
    monkeypatch.setattr(pygame.display, "flip", lambda: shown.append(pygame.display.get_surface().get_size()))
    world, actors = grid
    video.show_in_window(world, actors, 1, video.Showing(fps=60))
    assert len(shown) == 7
    assert len(set(shown)) == 1
    assert min(shown[0]) >= captions.SMALLEST
    assert not pygame.display.get_init()


def test_a_window_that_nobody_could_see_is_refused(grid, monkeypatch):
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "offscreen")
    world, actors = grid
    with pytest.raises(CoterieError, match=r"no window can be opened here \(no screen\); 'coterie watch RUN' writes"):
        video.show_in_window(world, actors, 1, video.Showing(fps=60))
    assert not pygame.display.get_init()


def test_a_world_without_pictures_says_so(odd, tmp_path):
    world, actors = odd
    with pytest.raises(CoterieError, match="'odd' cannot be drawn"):
        video.write_video(world, actors, 0, [tmp_path / "a.gif"])


def test_a_video_of_another_kind_is_refused(grid, tmp_path):
    world, actors = grid
    with pytest.raises(CoterieError, match=r"a.avi': videos are written as .gif or .mp4"):
        video.write_video(world, actors, 0, [tmp_path / "a.avi"])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_mp4_lies_beside_the_gif_and_lasts_as_long(grid, tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    world, actors = grid
    paths = video.video_paths(tmp_path / "a.gif")
    assert [path.name for path in paths] == ["a.gif", "a.mp4"]
    video.write_video(world, actors, 1, paths, video.Showing(fps=2))
    frames, seconds = ffmpeg.count_frames_and_secs(str(paths[1]))
    assert frames == 9  # seven, a pause, and how long the last one lasts
    assert seconds == pytest.approx(4.0, abs=0.3)  # as the GIF
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gif", "a.mp4"]


@pytest.mark.slow
def test_an_mp4_that_does_not_fit_on_the_disk_is_one_sentence(tmp_path, capfd):
    pytest.importorskip("imageio_ffmpeg")
    frames = np.random.default_rng(0).integers(0, 256, (40, 64, 64, 3), np.uint8)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))  # of ffmpeg, too
    try:
        with mp4.Mp4Writer(tmp_path / "a.mp4") as video_file:
            for frame in frames:
                video_file.add(frame)
            with pytest.raises(CoterieError, match=r"a\.mp4': ffmpeg failed: [^\n]*; has the disk free space\?$"):
                video_file.finish(10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert capfd.readouterr().err == ""
    assert list(tmp_path.iterdir()) == []


def test_without_ffmpeg_a_gif_is_all_and_an_mp4_says_what_it_needs(grid, tmp_path, monkeypatch):
    world, actors = grid
    monkeypatch.setattr(mp4, "available", lambda: False)
    assert video.video_paths(tmp_path / "a.gif") == [tmp_path / "a.gif"]
    with pytest.raises(CoterieError, match=r"a.mp4': MP4 files need imageio-ffmpeg: pip install 'coterie\[video\]'"):
        video.write_video(world, actors, 0, [tmp_path / "a.mp4"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("frames", "fps"), [(2, 0.5), (8, 2), (16, 4), (60, 4), (150, 10), (900, 30)])
def test_the_pace_suits_the_length(frames, fps):
    assert video.pace(frames) == fps


def test_kinds_of_policies_in_a_few_words():
    words = ["groups.learners.policy={name: language, lm: embedded}", "groups.learners.learner=null"]
    kinds = [policy_kind(group) for group in schema.load("gridworld-lm", words).groups.values()]
    assert kinds == ["language: embedded", "language: embedded", "expert"]
    assert policy_kind(schema.load("cartpole-ppo").groups["agent"]) == "network, ppo"


def test_captions_name_agents_and_kinds_and_fit_the_picture():
    world = build.build_world(schema.load("auction-mixed", ["world.num_bidders=6"]).world, 1)
    config = schema.load("auction-mixed", ["world.num_bidders=6"])
    actors = [group.actor for group in build.build_groups(config, world)]
    lines = captions.who_is_who(world, actors, {"prospect": "a kind of " + "long " * 20})
    assert lines[0].words.startswith("prospect: bidder_0, bidder_2, bidder_4 (a kind of long")
    assert lines[1].words == "neutral: bidder_1, bidder_3, bidder_5"
    assert [len(line.colours) for line in lines] == [3, 3]
    made = captions.Captioned(lines)
    world.reset(0)
    sizes = {made.frame(world.frame(0), words).shape for words in ("short", "longer " * 9)}
    assert len(sizes) == 1
    assert all(side % 2 == 0 for side in sizes.pop()[:2])
    assert len(made.wrapped) > 2


def test_words_of_captions_stand_apart():
    """A space is wide enough that 'model -5.00' does not read as one word."""
    made = captions.Captioned([])
    frame = made.frame(np.zeros((480, 480, 3), np.uint8), "I I")
    ink = np.flatnonzero((frame[: captions.LINE] != 255).any(axis=(0, 2)))
    assert np.diff(ink).max() > captions.SPACE


def test_the_returns_of_many_groups_are_all_seen_above_the_picture():
    """They take a second line, which frames of one video keep, and nothing is cut off at the edge."""
    made = captions.Captioned([])
    returns = dict.fromkeys(("learner", "veteran", "model", "script"), -5.0)
    words = [captions.describe_step((4, None), step, returns) for step in (2, 100)]
    frames = [made.frame(np.zeros((480, 480, 3), np.uint8), one) for one in words]
    assert made.lines_above == 2
    assert frames[0].shape == frames[1].shape
    for frame in frames:
        above = frame[: 2 * captions.LINE + captions.MARGIN]
        assert (above[:, -captions.MARGIN :] == 255).all()  # the margin is free
        assert (above[captions.LINE :] != 255).any()  # and the second line is used
    assert captions.in_lines(words[0], lambda text: len(text) <= 90) == [words[0]]
    assert captions.in_lines("step 1   return  a 1.00  b 2.00", lambda text: len(text) < 24) == [
        *("step 1   return  a 1.00", "b 2.00")
    ]


def test_the_kind_of_a_policy_is_not_cut_in_two():
    """A long line below a picture goes on before the bracket; a bracket that is wider than the picture is cut."""
    agents = "hunters: adversary_0, adversary_1, adversary_2"
    made = captions.Captioned(
        [captions.Who((captions.INK,), f"{agents} (network, ppo)"), captions.Who((), f"a ({'long ' * 30})")]
    )
    made.frame(np.zeros((480, 480, 3), np.uint8), "")
    assert [one.words for one in made.wrapped[:2]] == [agents, "(network, ppo)"]
    assert len(made.wrapped) > 4


def test_the_last_picture_of_a_board_game_says_who_has_won():
    """The mean return of self-play is always 0."""
    config = schema.load("tictactoe-alphazero", ["groups.players.policy=random", "groups.players.learner=null"])
    world = build.build_world(config.world, 1)
    runner = Runner(world, [group.actor for group in build.build_groups(config, world)], 0)
    shown = [video.running_returns(runner, final) for final in video.scenes(runner)]
    assert shown[0] == {"players": 0}
    assert sorted(shown[-1].items()) in ([("player_0", 1), ("player_1", -1)], [("player_0", -1), ("player_1", 1)])


def test_an_auctions_bars_stay_where_they_are():
    """The item of the last round stays in the right half of the picture, when its result appears in the left one."""
    config = schema.load("auction-neutral")
    world = build.build_world(config.world, 1)
    actors = [group.actor for group in build.build_groups(config, world)]
    before, after = (world.frame(0, final) for final in video.scenes(Runner(world, actors, 0)))
    half = before.shape[1] // 2
    assert np.array_equal(before[:, half:], after[:, half:])
    assert not np.array_equal(before[:, :half], after[:, :half])


@pytest.mark.parametrize("name", ["tictactoe", "spread", "tag", "doorkey", "auction", "gridworld"])
def test_every_sign_of_an_agent_has_its_name(name):
    world = build.build_world(schema.part(registry.WORLDS, {"name": name}, "world"), 1)
    agents = {agent for spaces in world.agent_types.values() for agent in spaces.agents}
    assert agents <= {sign.meaning for sign in world.legend()}


def test_a_video_is_written_frame_by_frame(tmp_path):
    """Colours and rectangles are right, and memory does not grow with the number of frames."""
    random = np.random.default_rng(0)
    background = random.integers(0, 4, size=(60, 80, 3), dtype=np.uint8) * 60
    pictures = []
    for step in range(12):
        picture = background.copy()
        picture[10 + step : 20 + step, 5:15] = (250, 10, 10)
        pictures.append(picture)
    with GifWriter(tmp_path / "a.gif") as video_file:
        for picture in pictures:
            video_file.add(picture)
        video_file.repeat()
        video_file.finish(fps=10)
    shown = Image.open(tmp_path / "a.gif")
    assert (shown.n_frames, shown.info["loop"]) == (12, 0)
    for number, picture in enumerate(pictures):
        shown.seek(number)
        assert shown.info["duration"] == (200 if number == 11 else 100)
        np.testing.assert_allclose(np.asarray(shown.convert("RGB")), picture, atol=30)
    assert [path.name for path in tmp_path.iterdir()] == ["a.gif"]


def test_a_video_that_fails_leaves_no_file(tmp_path):
    def write():
        with GifWriter(tmp_path / "a.gif") as video_file:
            for width in (4, 5):
                video_file.add(np.zeros((4, width, 3), np.uint8))

    with pytest.raises(ValueError, match="same size"):
        write()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_memory_does_not_grow_with_a_video(tmp_path):
    frame = np.zeros((200, 200, 3), np.uint8)
    tracemalloc.start()
    with GifWriter(tmp_path / "a.gif") as video_file:
        for step in range(200):
            frame[step] = step
            video_file.add(frame)
        video_file.finish(30)
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


@pytest.mark.parametrize("missing", ["gymnasium", "pygame"])
def test_watching_names_a_package_that_drawing_lacks(missing, monkeypatch, tmp_path):
    pytest.importorskip("gymnasium")
    config = schema.load("cartpole-ppo", ["groups.agent.policy=random", "groups.agent.learner=null"])
    world = build.build_render_world(config.world)
    actors = [group.actor for group in build.build_groups(config, world)]
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(CoterieError, match=rf"{missing}.*pip install 'coterie\[worlds,window\]'"):
        video.write_video(world, actors, 0, [tmp_path / "a.gif"])


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
