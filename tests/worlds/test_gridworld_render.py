"""Pictures of the grid world, in colour and in letters."""

import numpy as np

from coterie.worlds.drawing import text_mask
from coterie.worlds.gridworld import render
from helpers.grid import RIGHT, arrange, start, step


def test_frame_shows_where_things_are():
    world = start([(0, 0), (1, 1)], [(2, 2)], walls=[(3, 3)], grid_size=4, num_targets=1, num_obstacles=1)
    picture = world.frame(0)
    assert picture.shape == (544, 544, 3)  # cells of 128 pixels: a video need not enlarge it
    assert picture.dtype == np.uint8
    arrange(world, agents=[(0, 3), (1, 1)])
    changed = (world.frame(0) != picture).any(axis=-1)
    cells = {((row - 16) // 128, (column - 16) // 128) for row, column in zip(*np.nonzero(changed), strict=True)}
    assert cells == {(0, 0), (0, 3)}


def test_frame_paints_race_targets_like_their_agents():
    world = start([(0, 0), (0, 1)], [(2, 2), (3, 3)], grid_size=4, mode="race")
    picture = world.frame(0)

    def colours(row, column):
        top, left = 16 + 128 * row, 16 + 128 * column
        tile = picture[top : top + 128, left : left + 128].reshape(-1, 3)
        found, counts = np.unique(tile, axis=0, return_counts=True)  # shades at edges are rare
        often = {tuple(one) for one, count in zip(found.tolist(), counts, strict=True) if count > 100}
        return often - {(250, 248, 243), (242, 239, 231), (255, 255, 255)}

    assert colours(0, 0) & colours(2, 2)
    assert colours(0, 1) & colours(3, 3)
    assert not colours(0, 0) & colours(3, 3)
    assert not colours(0, 1) & colours(2, 2)


def test_numbers_are_letters_of_a_font():
    pictures = [start([(0, 0)] * count, [(2, 2)], grid_size=3, num_targets=1).frame(0) for count in (1, 2)]
    assert pictures[0].shape == (520, 520, 3)
    zero = text_mask("0", 30)
    rows, columns = zero.shape
    assert rows > columns  # taller than wide
    assert zero[rows // 2, columns // 2] == 0  # open in the middle
    assert zero[rows // 2].max() > 0.9
    assert ((zero > 0.05) & (zero < 0.95)).sum() > 10  # smooth edges
    assert (pictures[0] != pictures[1]).any()


def test_large_grids_are_not_enlarged():
    assert [render.zoom_of(size) for size in (3, 8, 15, 40)] == [5, 2, 1, 1]


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
