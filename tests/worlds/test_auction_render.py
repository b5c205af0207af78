"""Pictures of auctions, and the same in letters."""

import numpy as np

from coterie.worlds.auction.world import parallel_env
from helpers.auction import auction, bid


def test_letters():
    world = auction([0.5, 0.25], rounds=2)
    assert world.ansi(0) == ("round 1 of 2: on sale\nbidder_0  value 0.500  ##########\nbidder_1  value 0.250  #####")
    bid(world, 0.25, 0.125)
    lines = world.ansi(0).split("\n")
    assert lines[:4] == [
        "round 1 of 2: sold at 0.250",
        "bidder_0  value 0.500  bid 0.250  paid 0.250  won",
        "bidder_1  value 0.250  bid 0.125  paid 0.000",
        "round 2 of 2: on sale",
    ]
    bid(world, 0.0, 0.0)
    assert world.ansi(0, final=True).startswith("round 2 of 2: sold at 0.000\n")
    assert world.ansi(0).startswith("round 1 of 2: on sale\n")
    world = auction([0.5, 0.25], reserve=0.5)
    bid(world, 0.25, 0.125)
    assert world.ansi(0, final=True).startswith("round 1 of 1: not sold\n")


def test_pictures_show_valuations_and_bids():
    world = auction([1.0, 0.5], reserve=0.25)
    before = world.frame(0)
    assert before.shape == (320, 640, 3)
    assert before.dtype == np.uint8
    paper = before[2, 2]
    bars = (before[:, 320:] != paper).any(axis=-1)[62:290]
    assert (bars[:, 80].all(), bars[:, 200].all()) == (True, False)  # the second reaches half as high
    assert not (before[94:170, 40:320] != paper).any()  # nothing was sold yet
    bid(world, 0.5, 0.25)
    after = world.frame(0, final=True)
    assert (after[47, 80] == [240, 178, 40]).all()  # the winner's mark
    assert (after[47, 240] == paper).all()
    assert (after[230, 104] == [0, 114, 178]).all()  # the bid
    assert (after[100, 104] != [0, 114, 178]).any()
    bid(world, 0.0, 0.0)
    assert (world.frame(0, final=True)[47, 80] == paper).all()


def test_heading_scale_and_numbers_stay_where_they_are():
    """Both halves say what they show; the scale and the bidders' numbers are there before the first round, too."""
    world = auction([1.0, 0.5], rounds=2)
    before = world.frame(0)
    bid(world, 0.5, 0.25)
    after = world.frame(0)
    paper = before[2, 2]
    for half in (slice(0, 320), slice(320, 640)):
        scale, heading, numbers = (before[60:300, half][:, :30], before[:40, half], before[300:, half])
        assert all((part != paper).any() for part in (scale, heading, numbers))
        assert np.array_equal(scale, after[60:300, half][:, :30])
        assert np.array_equal(numbers, after[300:, half])
    assert (before[:40, :320] != after[:40, :320]).any()  # the heading says what the item was sold at
    assert np.array_equal(before[:40, 320:], after[:40, 320:])


def test_bars_too_narrow_for_numbers_have_none():
    frame = auction([0.5] * 20).frame(0)
    assert (frame[300:] == frame[2, 2]).all()


def test_the_face_draws():
    env = parallel_env(render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    env.step({"bidder_0": [0.5], "bidder_1": [0.25]})
    assert (env.render() != first).any()


def test_the_legend_names_the_reserve_price_where_there_is_one():
    def words(world):
        return " ".join(sign.meaning for sign in world.legend())

    assert "dotted: reserve" in words(auction([1.0, 0.5], reserve=0.25))
    assert "reserve" not in words(auction([1.0, 0.5]))
