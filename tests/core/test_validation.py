"""Every refusal is a sentence, whatever comes from Python."""

import numpy as np
import pytest
import torch

from coterie.core.validation import allocating, at_least, fits_in_memory, one_of, positive, whole, within
from coterie.worlds.auction.best_responses import AuctionModel
from coterie.worlds.auction.valuations import UNIFORM, tabulate
from coterie.worlds.auction.world import AuctionSettings
from coterie.worlds.gridworld.world import GridworldSettings
from coterie.worlds.mpe.world import SpreadSettings, TagSettings


@pytest.mark.parametrize("value", [2.0, 2.5, "3", None, True, float("nan"), np.float32(2), [2]])
def test_what_is_no_whole_number(value):
    with pytest.raises(ValueError, match=r"^agents must be a whole number, got ") as refused:
        whole("agents", value)
    assert str(refused.value).endswith(repr(value))


@pytest.mark.parametrize("value", [0, -3, 2**70, np.int64(2), np.uint8(2)])
def test_whole_numbers(value):
    whole("agents", value)


@pytest.mark.parametrize("value", ["0.5", None, [0.5], 1j])
def test_ranges_are_of_numbers(value):
    for check, bounds in ((within, (0, 1)), (at_least, (0,)), (positive, ())):
        with pytest.raises(ValueError, match=r"^share must be a number, got "):
            check("share", value, *bounds)


@pytest.mark.parametrize("value", ["Red", "", None, ["red"]])
def test_what_is_none_of_the_options(value):
    one_of("colour", "red", ("red", "green"))
    with pytest.raises(ValueError, match=r"^colour must be one of red, green, got ") as refused:
        one_of("colour", value, ("red", "green"))
    assert str(refused.value).endswith(repr(value))


def test_ranges():
    within("share", np.float32(0.5), 0, 1)
    at_least("share", 1, 1)
    positive("share", 1e-9)
    for check, value, bounds, said in (
        (within, 1.5, (0, 1), r"share must lie in \[0, 1\], got 1.5"),
        (within, float("nan"), (0, 1), r"share must lie in \[0, 1\], got nan"),
        (at_least, 0, (1,), "share must be at least 1, got 0"),
        (positive, 0, (), "share must be above 0, got 0"),
    ):
        with pytest.raises(ValueError, match=said):
            check("share", value, *bounds)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (AuctionSettings, ("num_bidders", "bid_levels", "rounds")),
        (SpreadSettings, ("num_agents", "max_steps")),
        (TagSettings, ("num_good", "num_adversaries", "num_obstacles", "max_steps")),
        (
            GridworldSettings,
            ("grid_size", "num_agents", "num_targets", "max_steps", "num_obstacles", "view", "messages"),
        ),
    ],
)
def test_counts_of_worlds_are_whole(settings, names):
    for name in names:
        for value in (3.0, 2.5, "3"):
            with pytest.raises(ValueError, match=rf"^{name} must be a whole number, got {value!r}$"):
                settings(**{name: value})
        settings(**{name: np.int64(3)})


def test_markets_have_whole_bidders():
    with pytest.raises(ValueError, match=r"bidders must be a whole number, got 2.5"):
        AuctionModel(2.5, tabulate(UNIFORM))


@pytest.mark.parametrize("given", [{"reserve": "0.1"}, {"budget": "much"}, {"reserve": None}])
def test_amounts_of_auctions_are_numbers(given):
    with pytest.raises(ValueError, match=r"^(reserve|budget) must be a number, got "):
        AuctionSettings(**given)


def test_what_exceeds_the_memory_is_refused_with_its_size():
    fits_in_memory("a grid", 1e6, "lower grid_size")
    with pytest.raises(ValueError, match=r"a grid needs about 4,000,000 GB of memory, .*; lower grid_size"):
        fits_in_memory("a grid", 4e15, "lower grid_size")


def test_memory_that_pytorch_cannot_have_is_a_memory_error():
    with pytest.raises(MemoryError, match="do not fit into memory; choose fewer"), allocating():
        torch.empty(2**55)
    with pytest.raises(RuntimeError, match="shape"), allocating():
        torch.zeros(2, 3).view(5)
