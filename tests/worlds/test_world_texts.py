"""Text codecs of worlds: descriptions for language models, and the actions behind their choices."""

import numpy as np
import pytest

from coterie.testing import check_policy
from coterie.worlds.adapters.gymnasium import GymnasiumSettings, GymnasiumWorld
from coterie.worlds.auction.world import Auction, AuctionSettings
from coterie.worlds.boards.connect_four import ConnectFour, ConnectFourSettings
from coterie.worlds.boards.othello import Othello, OthelloSettings
from coterie.worlds.boards.tictactoe import Tictactoe, TictactoeSettings, describe_board
from coterie.worlds.gridworld.text import GridworldText, describe_nearest_target
from coterie.worlds.mpe.world import Spread, SpreadSettings, Tag, TagSettings
from helpers.language import player, race
from helpers.small_worlds import spec_in


@pytest.mark.parametrize(
    ("targets", "walls", "text"),
    [
        ([(-2, 0)], [], "The target is 2 steps up."),
        ([(1, -3)], [], "The target is 3 steps left and 1 step down."),
        ([(2, 2)], [], "The target is 2 steps down and 2 steps right."),
        ([(4, 4), (0, 1)], [], "The target is 1 step right."),
        ([(0, 0)], ["up", "left"], "The target is here. There is a wall up and left."),
        ([], [], "No target is in sight."),
    ],
)
def test_the_grid_in_words(targets, walls, text):
    assert describe_nearest_target(targets, walls) == text


@pytest.mark.parametrize("mode", ["race", "cooperative", "competitive", "meet"])
def test_every_view_of_the_grid_says_the_same(mode):
    shown = []
    for observation in ("flat", "dict", "image"):
        world = race(50, mode=mode, observation=observation, num_obstacles=3)
        seen = world.reset(3).agent_types["agent"].observation
        rows = {k: a[:, 0] for k, a in seen.items()} if isinstance(seen, dict) else seen[:, 0]
        shown.append(GridworldText(world, "agent").describe(rows))
    assert shown[0] == shown[1] == shown[2]
    assert len(set(shown[0])) > 20


def test_targets_out_of_sight_are_not_described():
    world = race(50, grid_size=8, view=2)
    text_of = GridworldText(world, "agent").describe(world.reset(0).agent_types["agent"].observation[:, 0])
    away = abs(world.grid.targets[:, 0] - world.grid.agents[:, 0]).max(axis=1)
    assert [text == "No target is in sight." for text in text_of] == (away > 2).tolist()


def test_optimal_moves_are_those_that_come_nearer():
    world = race(200, num_obstacles=4)
    world.reset(0)
    codec = GridworldText(world, "agent")
    assert codec.optimal(world, world.expert("agent", np.random.default_rng(0))).all()
    assert not codec.optimal(world, np.full((200, 2), 4)).any()  # nobody stands on its target
    share = np.mean([codec.optimal(world, np.full((200, 2), move)) for move in range(4)])
    assert 0.3 < share < 0.5


def test_a_board_in_words():
    own, others = np.zeros(9, bool), np.zeros(9, bool)
    own[[0, 1]], others[[3, 4]] = True, True
    text_of = describe_board(own, others)
    assert text_of == "You are X: XX. / OO. / .... X wins at top right. O threatens middle right."


def test_bids_in_words():
    world = Auction(AuctionSettings(rounds=3, budget=1.0), 2)
    policy = player(world, calibration="none")
    assert policy.codec.choices[:3] == ("0.0", "0.1", "0.2")
    (text, *_) = policy.codec.describe(np.array([[0.5, 1 / 3, 1.0, 0.25, 0.0, 0.75]]))
    assert text.endswith("worth 0.50 to you. Round 2 of 3. The last item went for 0.25. You have 0.75 left.")
    np.testing.assert_allclose(policy.codec.actions(np.array([3])), [[0.3]])
    levels = player(Auction(AuctionSettings(bid_levels=21), 2), calibration="none", examples="none")
    assert levels.codec.choices[1] == "0.05"
    assert levels.codec.actions(np.array([3])).tolist() == [3]


@pytest.mark.parametrize("agent_type", ["agent", "adversary"])
def test_hunters_go_to_the_prey_and_prey_goes_away(agent_type):
    world = Tag(TagSettings(num_obstacles=0, num_adversaries=1), 1)
    world.reset(0)
    world.particles.position[0] = [[0.0, 0.0], [0.5, 0.0]]  # the hunter, then the prey
    observation = world.load(world.save()).agent_types[agent_type].observation[:, 0]
    (text_of,) = player(world, agent_type=agent_type).codec.describe(observation)
    assert text_of == (
        "The prey is 5 steps right." if agent_type == "adversary" else "Away from the nearest hunter is 5 steps right."
    )


WORLDS = {
    "gridworld": lambda: race(3),
    "messages": lambda: race(3, messages=2),
    "meet": lambda: race(3, mode="meet"),
    "tictactoe": lambda: Tictactoe(TictactoeSettings(), 3),
    "connect_four": lambda: ConnectFour(ConnectFourSettings(), 3),
    "othello": lambda: Othello(OthelloSettings(), 3),
    "auction": lambda: Auction(AuctionSettings(), 3),
    "spread": lambda: Spread(SpreadSettings(), 3),
    "cartpole": lambda: GymnasiumWorld(GymnasiumSettings("CartPole-v1"), 3),
}


@pytest.mark.parametrize("name", WORLDS)
def test_every_world_with_words_seats_a_model(name):
    world = WORLDS[name]()
    agent_type = next(iter(world.agent_types))
    check_policy(lambda where: player(world, agent_type=agent_type), spec_in(world), world=world)
    policy = player(world, agent_type=agent_type)
    assert set(policy.codec.samples())
    assert len(policy.of_choice) == len(policy.codec.choices)
