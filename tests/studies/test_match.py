"""Cross-play: who sits where, what is counted for whom, how it is shown, and what is refused."""

import json

import numpy as np
import pytest
from PIL import Image

from coterie.config import registry, schema
from coterie.core import lookup
from coterie.core.types import CoterieError, View
from coterie.policies.alphabeta import AlphabetaSettings
from coterie.studies.match import match, show
from coterie.studies.match.match import Pairing, Player, cross_play, open_players, sides
from coterie.training import build, table
from coterie.training.evaluate import Result, interval
from helpers import run as run_cases
from helpers.run import ODD, train, written
from helpers.small_worlds import generator

DUEL = "world: {name: tictactoe}\ngroups: {all: {policy: {name: random}}}\n"
TAG = """\
world: {name: tag, max_steps: 5}
groups:
  prey: {agents: "agent_*", policy: {name: network, hidden: [4]}, learner: {name: ppo}}
  hunters: {agents: "adversary_*", policy: {name: network, hidden: [6]}, parameters: individual, learner: {name: ppo}}
train: {num_envs: 4, rollout_steps: 5, total_steps: 40, evaluate_episodes: 4, video: false, tensorboard: false}
"""


def settings(tmp_path, text):
    return schema.load(str(written(tmp_path / "table.yaml", text)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Tiny runs by name."""
    path = tmp_path_factory.mktemp("runs")
    short = "train.total_steps=64"
    made = {
        "shared": train(path / "shared", short),
        "apart": train(path / "apart", short, "groups.team.parameters=individual"),
        "memory": train(path / "memory", short, "groups.team.policy.memory=3"),
        "wide": train(path / "wide", short, "world.observation=dict"),
        "tag": train(path / "tag", experiment=written(path / "tag.yaml", TAG)),
        "duel": train(path / "duel", experiment=written(path / "duel.yaml", run_cases.DUEL)),
        "odd": train(path / "odd", experiment=written(path / "odd.yaml", ODD)),
    }
    return {name: str(run.path) for name, run in made.items()}


# Sides --------------------------------------------------------------------------------------------------


def seatings(tmp_path, text):
    given = settings(tmp_path, text)
    return sides(given, build.build_world(given.world, 1))


def test_symmetric_seats_are_rotated(tmp_path):
    assert seatings(tmp_path, DUEL) == [(["player_0"], ["player_1"]), (["player_1"], ["player_0"])]
    three = "world: {name: spread}\ngroups: {all: {policy: {name: random}}}\n"
    assert [first for first, _ in seatings(tmp_path, three)] == [["agent_0"], ["agent_1"], ["agent_2"]]
    pair = """\
world: {name: spread}
groups:
  one: {agents: agent_1, policy: {name: random}}
  two: {agents: [agent_0, agent_2], policy: {name: random}}
"""
    found = seatings(tmp_path, pair)
    assert found[0] == (["agent_1"], ["agent_0", "agent_2"])
    assert sorted(first[0] for first, _ in found) == ["agent_0", "agent_1", "agent_2"]
    assert all(sorted(first + second) == ["agent_0", "agent_1", "agent_2"] for first, second in found)


def test_seats_of_different_kinds_stay_as_they_are(tmp_path):
    found = seatings(tmp_path, TAG)
    assert found == [(["agent_0"], ["adversary_0", "adversary_1", "adversary_2"])]


def test_a_lone_agent_has_nobody_to_meet(tmp_path):
    alone = ODD.replace('"helpers.run:Odd"', '"helpers.run:Odd", agents: 1')
    with pytest.raises(CoterieError, match=r"a match needs at least two agents at the table, .* 'coterie eval RUN'"):
        seatings(tmp_path, alone)


# Seats --------------------------------------------------------------------------------------------------


def played(actor, observation):
    """The actions of an actor for observations `[N, …]`."""
    size = actor.policy.memory_size
    view = View(
        observation[:, None],
        np.ones((len(observation), 1), bool),
        actor.members,
        generator(),
        greedy=True,
        memory=np.zeros((len(observation), 1, size), np.float32) if size else None,
    )
    return actor.policy.act(view)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shared", "apart", "memory"])
def test_a_policy_plays_every_seat_as_it_learned_to(runs, name):
    (player,) = open_players([runs[name]], "best")
    world = build.build_world(player.table.config.world, 7)
    seen = world.reset(0).agent_types["agent"].observation
    policy = player.table.groups[0].policy
    size = policy.memory_size
    everyone = policy.act(
        View(
            seen,
            np.ones(seen.shape[:2], bool),
            np.arange(2),
            generator(),
            greedy=True,
            memory=np.zeros((7, 2, size), np.float32) if size else None,
        )
    )
    for i, agent in enumerate(("agent_0", "agent_1")):
        actor = player.actor(agent, world, 0)
        assert (actor.group_spec.agents, actor.group_spec.columns.tolist(), actor.members.tolist()) == (
            (agent,),
            [i],
            [i],
        )
        said = played(actor, seen[:, i])
        assert np.allclose(said.log_prob[:, 0], everyone.log_prob[:, i], atol=1e-5)
        assert np.array_equal(said.action[:, 0], everyone.action[:, i])


def test_who_learned_one_seat_takes_like_ones_too(tmp_path):
    text = """\
world: {name: gridworld, mode: race, grid_size: 4, max_steps: 12}
groups:
  scripted: {agents: agent_1, policy: {name: random}}
  learned: {agents: agent_0, policy: {name: network, hidden: [4]}, learner: {name: ppo}}
"""
    given = settings(tmp_path, text)
    world = build.build_world(given.world, 2)
    player = Player("lone", table.Table(given, build.build_groups(given, world, learning=False), 0))
    for agent in ("agent_0", "agent_1"):
        actor = player.actor(agent, world, 0)
        assert actor.policy is player.table.groups[1].policy
        assert actor.members.tolist() == [0]


def test_groups_take_the_seats_of_their_kind(runs):
    (player,) = open_players([runs["tag"]], "best")
    world = build.build_world(player.table.config.world, 2)
    groups = {group.name: group for group in player.table.groups}
    for agent, group, member in (("agent_0", "prey", 0), ("adversary_0", "hunters", 0), ("adversary_2", "hunters", 2)):
        actor = player.actor(agent, world, 0)
        assert actor.policy is groups[group].policy
        assert actor.members.tolist() == [member]


def test_scripted_players_sit_anywhere(tmp_path):
    world = build.build_world(settings(tmp_path, TAG).world, 2)
    for name in ("random", "expert"):
        (player,) = open_players([name], "best")
        for agent in ("agent_0", "adversary_1"):
            actor = player.actor(agent, world, 0)
            assert actor.group_spec.agents == (agent,)
            assert type(actor.policy) is lookup.look_up(registry.POLICIES, name)


# The matrix ---------------------------------------------------------------------------------------------


def test_the_tictactoe_expert_beats_random_from_both_seats(tmp_path):
    given = settings(tmp_path, DUEL)
    world = build.build_world(given.world, 64)
    expert, random = open_players(["expert", "random"], "best")
    for first, second in (("player_0", "player_1"), ("player_1", "player_0")):
        seats = [expert.actor(first, world, 0), random.actor(second, world, 0)]
        found = match.evaluate(world, seats, 64, 0)
        assert found.returns[first].mean() > 0.5
        assert found.returns[second].mean() < -0.5
    matrix = cross_play([expert, random], given, 50, 0)
    assert [len(entry.first) for row in matrix for entry in row] == [100] * 4  # 50 in each rotation
    assert matrix[0][1].first.mean() > 0.6
    assert matrix[1][0].first.mean() < -0.6
    assert matrix[0][1].first.mean() == pytest.approx(-matrix[0][1].second.mean())  # a game of zero sum
    assert matrix[1][1].first.mean() == pytest.approx(0, abs=0.35)  # the first move's advantage is shared


def test_every_pair_meets_on_the_same_episodes(runs):
    players = open_players([runs["shared"], "random", runs["apart"]], "last")
    given = players[0].table.config
    matrix = cross_play(players, given, 6, 3)
    again = cross_play(players[:2], given, 6, 3)
    assert [len(row) for row in matrix] == [3, 3, 3]
    for i, j in np.ndindex(2, 2):
        assert np.array_equal(matrix[i][j].first, again[i][j].first)
    assert not np.array_equal(matrix[0][1].first, cross_play(players[:2], given, 6, 4)[0][1].first)


def test_a_run_meets_what_it_was_before(runs):
    """Players of one run at several checkpoints, as a learning curve against past selves needs them."""
    last, first = open_players([runs["shared"], f"{runs['shared']}:checkpoint=0"], "last")
    assert (last.table.env_steps, first.table.env_steps) == (64, 0)
    ((_, won), (lost, _)) = cross_play([last, first], last.table.config, 4, 5)
    assert won.first.tolist() != lost.first.tolist()
    with pytest.raises(CoterieError, match="has no checkpoint '7'; there are best, last and steps"):
        open_players([f"{runs['shared']}:checkpoint=7"], "last")


def test_a_player_beside_itself_plays_as_in_an_evaluation(runs):
    (player,) = open_players([runs["shared"]], "best")
    ((entry,),) = cross_play([player], player.table.config, 8, 5)
    alone = player.table.evaluate(8, 5)
    assert entry.length.tolist() == [*alone.length, *alone.length]  # two rotations of the same episodes
    assert entry.first[:8].tolist() == pytest.approx(alone.returns["team"][:, 0].tolist())
    assert entry.first[8:].tolist() == pytest.approx(alone.returns["team"][:, 1].tolist())
    assert entry.success.mean() == alone.success.mean()


def test_sides_are_summed_up_by_their_agents():
    returns = {"a": np.array([[1.0], [2.0]]), "b": np.array([[3.0], [4.0]]), "c": np.array([[7.0], [0.0]])}
    result = Result(returns, np.array([5, 6]), None, np.array([0, 1]), np.array([7, 8], np.uint64))
    found = match.pairing(result, ["b"], ["a", "c"])
    assert found.first.tolist() == [3, 4]
    assert found.second.tolist() == [4, 1]
    both = match.join([found, match.pairing(result, ["a"], ["b", "c"])])
    assert both.first.tolist() == [3, 4, 1, 2]
    assert both.second.tolist() == [4, 1, 5, 2]
    assert both.length.tolist() == [5, 6, 5, 6]
    assert both.success is None
    plain = show.pairing_to_dict(both)
    assert plain["return_mean"] == 2.5
    half = 12.706205 * np.std([2, 3], ddof=1) / np.sqrt(2)  # both rotations of a start count as one
    assert plain["return_ci95"] == pytest.approx([2.5 - half, 2.5 + half])
    assert plain["other_return_mean"] == 3


def test_rotations_of_the_same_episodes_are_not_independent(runs):
    """Where seats make no difference, the interval is that of `eval`."""
    (player,) = open_players([runs["odd"]], "best")
    given = player.table.config
    ((entry,),) = cross_play([player], given, 16, 5)
    mean, (low, high) = entry.interval(entry.length)
    alone_mean, alone_low, alone_high = interval(player.table.evaluate(16, 5).length)
    assert len(entry.length) == 32
    assert (mean, low, high) == pytest.approx((alone_mean, alone_low, alone_high))
    assert high > mean


def test_the_interval_covers_the_mean_as_often_as_it_says():
    """Two rotations whose results depend on the start: 95% of intervals hold the mean, not 83%."""
    random, held = np.random.default_rng(0), 0
    for _ in range(1000):
        draws = random.normal(size=100)
        returns = np.concatenate([draws, draws])
        numbers, zero = np.tile(np.arange(100), 2), np.zeros(200)
        entry = Pairing(returns, zero, zero, None, numbers, np.arange(200), np.repeat([0, 1], 100))
        low, high = entry.interval(returns)[1]
        held += low <= 0 <= high
    assert 930 <= held <= 970


@pytest.mark.slow
def test_a_game_without_chance_is_one_game(tmp_path, coterie_):
    fixed = run_cases.DUEL.replace("first: random", "first: player_0")
    run = train(tmp_path / "run", experiment=written(tmp_path / "fixed.yaml", fixed))
    words = ("match", run.path, "random", "--episodes", 20)
    code, out, err = coterie_(*words)
    assert code == 0, err
    head, _, itself, other = out.splitlines()[1:5]
    assert head.endswith("distinct")
    assert itself.endswith("  1")
    assert len(other) < len(head)
    assert "±" not in itself
    assert "±" in other
    assert max(len(line) for line in out.splitlines()) <= 80
    ((alone, against), _) = json.loads(coterie_(*words, "--json")[1])["matrix"]
    assert (alone["distinct_games"], alone["return_ci95"], alone["other_return_ci95"]) == (1, None, None)
    assert against["distinct_games"] > 20
    assert against["return_ci95"][0] < against["return_ci95"][1]


def test_games_with_equal_returns_are_distinguished(tmp_path):
    """The expert never loses to itself, in games that differ."""
    given = settings(tmp_path, DUEL)
    expert, random = open_players(["expert", "random"], "best")
    matrix = cross_play([expert, random], given, 30, 0)
    assert set(matrix[0][0].first) == {0}
    assert matrix[0][0].distinct_games > 5
    assert matrix[1][1].distinct_games == 30  # of 60: a player's rotations with itself are the same games


# Showing and the command --------------------------------------------------------------------------------


ENTRY = {"return_mean", "return_ci95", "other_return_mean", "other_return_ci95", "length_mean", "success_rate"}
ENTRY |= {"distinct_games", "wins", "draws", "losses", "elo_difference"}


def test_match_prints_one_object(coterie_, runs):
    code, out, err = coterie_("match", runs["shared"], "random", "--episodes", 4, "--seed", 2, "--json")
    assert code == 0, err
    said = json.loads(out)
    assert set(said) == {"players", "episodes", "seed", "matrix"}
    assert (said["players"], said["episodes"], said["seed"]) == ([runs["shared"], "random"], 4, 2)
    assert [len(row) for row in said["matrix"]] == [2, 2]
    assert all(set(entry) == ENTRY for row in said["matrix"] for entry in row)
    assert coterie_("match", runs["shared"], "random", "--episodes", 4, "--seed", 2, "--json")[1] == out


@pytest.mark.slow
def test_match_prints_a_table_and_draws(coterie_, runs, tmp_path, drawing):
    picture = tmp_path / "new" / "matrix.png"
    code, out, err = coterie_("match", runs["shared"], runs["apart"], "expert", "--episodes", 2, "--figure", picture)
    assert code == 0, err
    lines = out.splitlines()
    assert "first side" in lines[0]
    assert [line for line in lines[1:] if not line.startswith(" ")] == ["shared", "apart", "expert"]
    assert sum("±" in line for line in lines[2:]) == 9
    assert "success" in lines[1]
    with Image.open(picture) as image:
        assert min(image.size) > 300


def test_a_table_may_be_named(coterie_, runs, tmp_path):
    path = written(tmp_path / "duel.yaml", DUEL)
    code, out, err = coterie_("match", "random", "expert", "--world", path, "--episodes", 4, "--json")
    assert code == 0, err
    assert json.loads(out)["matrix"][1][0]["success_rate"] is None
    code, out, err = coterie_(
        "match", "random", runs["shared"], "--world", runs["memory"], "--episodes", 2, "--stochastic"
    )
    assert code == 0, err


def test_who_does_not_fit_is_refused_before_the_first_game(runs, monkeypatch):
    monkeypatch.setattr(match, "evaluate", lambda *_: pytest.fail("a game was played"))
    players = open_players([runs["shared"], "random", runs["wide"]], "best")
    with pytest.raises(CoterieError, match="wide' was trained in another world"):
        cross_play(players, players[0].table.config, 4, 0)


def test_names_are_as_short_as_they_can_be():
    def shown(*paths):
        return show.short_names(paths)

    assert shown("runs/a", "runs/b", "random") == ["a", "b", "random"]
    assert shown("x/a", "y/a") == ["x/a", "y/a"]
    assert shown("random", "random") == ["random", "random"]


@pytest.mark.parametrize(
    "name", ["random", "gridworld-competitive, seed 0", "x" * 50, "learner.learning_rate=0.001", "-"]
)
def test_long_names_of_a_figure_are_broken_not_cut(name):
    lines = show.wrapped(name)
    assert max(map(len, lines)) <= show.NAME_WIDTH + 1
    assert "".join(lines).replace(" ", "") == name.replace(" ", "")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["nobody", "random"],
            1,
            "'nobody' is neither a run nor a policy that needs no training (random, expert, guess, minimax, alphabeta,",
        ),
        (["randon"], 1, "; did you mean 'random'?"),
        (["network"], 1, "'network' is neither a run nor a policy that needs no training"),
        (["random", "expert"], 2, "--world: policies without a run need a table"),
        (["{duel}", "{shared}"], 1, "has no policy for 'player_0'"),
        (["{shared}", "{tag}"], 1, "was trained in another world: its 'agent_0'"),
        (["{shared}", "{wide}"], 1, "was trained in another world: its 'agent_0'"),
        (["{odd}", "expert"], 2, "policy 'expert' needs a world"),
        (["{odd}", "--world", "{odd}x"], 2, "odd"),
        (["{duel}", "alphabeta:depht=3"], 2, "player 'alphabeta'.depht: no such setting; did you mean 'depth'?"),
        (["{duel}", "alphabeta:depth=0"], 2, "depth must be at least 1, got 0"),
        (["{duel}", "alphabeta:3"], 2, "expected key=value"),
        (["{shared}", "minimax"], 2, "policy 'minimax' needs a world with the capability HasGame"),
    ],
)
def test_what_cannot_meet_is_refused(coterie_, runs, words, code, said):
    found, _, err = coterie_("match", *(word.format(**runs) for word in words), "--episodes", 2)
    assert said in err
    assert found == code
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_name_may_hold_settings(tmp_path):
    assert match.named_policy("alphabeta:depth=6,ties=first").settings == AlphabetaSettings(6, "first")
    assert match.named_policy("alphabeta").settings == AlphabetaSettings()
    assert match.named_policy("network:hidden=[8,4],activation=relu").settings.hidden == (8, 4)
    players = open_players(["alphabeta:depth=1", "minimax", "random"], "best")
    matrix = cross_play(players, settings(tmp_path, DUEL), 20, 0)
    assert match.tally(matrix[1][1]) == match.Tally(0, 40, 0)  # both seats
    assert match.tally(matrix[1][2]).losses == 0
    text = show.as_table(players, matrix)
    assert text.splitlines()[1].split() == [
        "with",
        "return",
        "±",
        "95%",
        "won",
        "drew",
        "lost",
        "Elo",
    ]
    assert "0    40     0    +0" in text
    assert max(map(len, text.splitlines())) <= 80
    entry = show.to_dict(players, matrix, 20, 0)["matrix"][1][1]
    assert (entry["wins"], entry["draws"], entry["losses"], entry["elo_difference"]) == (0, 40, 0, 0.0)


def test_elo_differences():
    assert match.Tally(75, 0, 25).elo == pytest.approx(190.85, abs=0.01)
    assert match.Tally(50, 50, 0).elo == pytest.approx(190.85, abs=0.01)
    assert match.Tally(0, 10, 0).elo == 0
    assert match.Tally(10, 0, 0).cells() == ["10", "0", "0", ">+512"]
    assert match.Tally(0, 0, 10).cells() == ["0", "0", "10", "<-512"]


def pairing_of(first, second):
    """A pairing with these returns; each episode is a game of its own."""
    number = np.arange(len(first))
    return Pairing(first, second, np.ones(len(first)), None, number, number, 0 * number)


def test_games_that_are_not_zero_sum_have_no_tally():
    one, none = np.array([1.0, 2.0]), np.zeros(0)
    assert match.tally(pairing_of(one, one)) is None
    assert match.tally(pairing_of(one, none)) is None
    assert match.tally(pairing_of(one, -one)) == match.Tally(2, 0, 0)
    entry = show.pairing_to_dict(pairing_of(one, one))
    assert entry["wins"] is None
    assert entry["elo_difference"] is None
