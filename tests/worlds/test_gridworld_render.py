"""Pictures of the grid world, in colour and in letters."""

import numpy as np

from helpers.grid import RIGHT, arrange, start, step


def test_frame_shows_where_things_are():
    world = start([(0, 0), (1, 1)], [(2, 2)], walls=[(3, 3)], grid_size=4, num_targets=1, num_obstacles=1)
    picture = world.frame(0)
    assert picture.shape == (136, 136, 3)
    assert picture.dtype == np.uint8
    arrange(world, agents=[(0, 3), (1, 1)])
    changed = (world.frame(0) != picture).any(axis=-1)
    cells = {((row - 4) // 32, (column - 4) // 32) for row, column in zip(*np.nonzero(changed), strict=True)}
    assert cells == {(0, 0), (0, 3)}


def test_frame_paints_race_targets_like_their_agents():
    world = start([(0, 0), (0, 1)], [(2, 2), (3, 3)], grid_size=4, mode="race")
    picture = world.frame(0)

    def colours(row, column):
        tile = picture[4 + 32 * row : 36 + 32 * row, 4 + 32 * column : 36 + 32 * column].reshape(-1, 3)
        return set(map(tuple, tile.tolist())) - {(250, 248, 243), (242, 239, 231), (255, 255, 255)}

    assert colours(0, 0) & colours(2, 2)
    assert colours(0, 1) & colours(3, 3)
    assert not colours(0, 0) & colours(3, 3)
    assert not colours(0, 1) & colours(2, 2)


def test_ansi_by_hand():
    world = start([(0, 0), (1, 1), (1, 1)], [(0, 1), (1, 1), (2, 0)], walls=[(2, 2)], grid_size=3, num_obstacles=1)
    assert world.ansi(0) == "step 0\n┌───────┐\n│ 0 * . │\n│ . +*. │\n│ * . # │\n└───────┘"
    world = start([(0, 0), (1, 1)], [(0, 1), (1, 1)], grid_size=3, mode="race")
    assert world.ansi(0) == "step 0\n┌───────┐\n│ 0 a . │\n│ . 1b. │\n│ . . . │\n└───────┘"


def test_final_picture_shows_how_the_episode_ended():
    world = start([(0, 0)], [(0, 1)], grid_size=2, num_targets=1)
    step(world, RIGHT)
    assert world.ansi(0, final=True) == "step 1\n┌─────┐\n│ . 0 │\n│ . . │\n└─────┘"
    assert world.ansi(0).startswith("step 0\n")
