"""The panels of an auction report: revenue, efficiency and payoffs, next to the equilibrium."""

import pytest
from matplotlib.figure import Figure

from coterie.preferences.prospect import NEUTRAL, Prospect
from coterie.studies.auction import metrics
from coterie.studies.auction.report import draw_bids
from coterie.worlds.auction.best_responses import bid_function
from coterie.worlds.auction.world import AuctionSettings


def panels_of(found, monkeypatch):
    """The panels below the bids, by title: points, bars, texts and axes."""
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self))
    draw_bids([found])
    panels = {}
    for axes in drawn[0].axes[2:]:
        dots = [tuple(held.lines[0].get_xydata()[0].tolist()) for held in axes.containers]
        bars = [held.lines[2][0].get_segments()[0][:, 1].tolist() for held in axes.containers if held.lines[2]]
        panels[axes.get_title("left")] = (dots, bars, [words.get_text() for words in axes.texts], axes)
    return panels


def shaded(shares, risks, members, **settings):
    """A theory, and one table for each share of their valuations that all bidders bid."""
    benchmark = metrics.make_benchmark(AuctionSettings(**settings), members, risks)
    seats = [
        [bid_function(benchmark.model, lambda v, s=share: s * v)] * benchmark.settings.num_bidders for share in shares
    ]
    return benchmark, [metrics.evaluate_bidders(benchmark, table) for table in seats]


@pytest.mark.slow
def test_panels_of_what_comes_of_the_bids(monkeypatch, drawing):
    """Learned means with their intervals, the mixed table's equilibrium and that of neutral bidders."""
    risks = {"prospect": Prospect(), "neutral": NEUTRAL}
    found = shaded((0.5, 0.6, 0.7), risks, {"prospect": (0,), "neutral": (1,)})
    plain, shown = metrics.summarise(*found), panels_of(found, monkeypatch)
    assert [*shown] == [
        *("revenue per auction", "efficiency", "highest valuation wins", "payoff per auction and bidder")
    ]
    for name, (dots, bars, words, axes) in zip(("revenue", "efficiency", "highest_wins"), shown.values(), strict=False):
        learned, oracle, neutral = (plain["auction"][who][name] for who in ("learned", "equilibrium", "neutral"))
        assert dots == [(0, learned["value"]), (1, oracle), (2, neutral)]
        assert bars[0] == pytest.approx(learned["interval"])
        assert len(bars) == 1  # theory has none
        assert words[0] == (f"{learned['value']:.3f}" if name == "revenue" else f"{learned['value']:.1%}")
        assert [agent_step.get_text() for agent_step in axes.get_xticklabels()] == [
            "learned",
            "equilibrium",
            "all\nrisk-neutral",
        ]
        low, high = axes.get_ylim()
        assert low < min(y for _, y in dots) <= max(y for _, y in dots) < high
    dots, bars, words, axes = shown["payoff per auction and bidder"]
    one, other = (plain["groups"][name] for name in risks)
    expected = [one["learned"]["payoff"]["value"], one["equilibrium"]["payoff"]]
    expected += [other["learned"]["payoff"]["value"], other["equilibrium"]["payoff"], 1 / 6]
    assert [y for _, y in dots] == pytest.approx(expected, abs=1e-4)
    assert expected[1] != pytest.approx(expected[3], abs=0.01)
    assert [round(x) for x, _ in dots] == [0, 1, 0, 1, 2]
    assert bars == [pytest.approx(group["learned"]["payoff"]["interval"]) for group in (one, other)]
    assert axes.get_legend_handles_labels()[1] == ["prospect", "neutral"]


@pytest.mark.slow
def test_panels_of_one_run_and_without_theory(monkeypatch, drawing):
    """One run has no bars; what is not known is said, also where nothing is left; no earnings are no error."""
    found = shaded((1.0,), {"all": NEUTRAL}, {"all": (0, 1)})
    shown = panels_of(found, monkeypatch)
    assert all(not bars for _, bars, _, _ in shown.values())
    assert shown["payoff per auction and bidder"][0][0] == pytest.approx((0, 0), abs=1e-6)
    assert shown["payoff per auction and bidder"][3].get_legend() is None
    benchmark = metrics.make_benchmark(AuctionSettings(budget=0.5), {"all": (0, 1)}, {"all": NEUTRAL})
    falling = metrics.evaluate_bidders(benchmark, [bid_function(benchmark.model, lambda v: (1 - v) / 2)] * 2)
    shown = panels_of((benchmark, [falling]), monkeypatch)
    timestep = [[agent_step.get_text() for agent_step in axes.get_xticklabels()] for *_, axes in shown.values()]
    assert [["unknown" in words for words in below] for below in timestep] == [
        *([False, True, True], [False, True, True], [True, True, True], [False, True, True])
    ]
    assert shown["highest valuation wins"][0] == []
    assert shown["highest valuation wins"][3].get_xlabel() == "undefined if a bid function decreases"
    assert len(shown["revenue per auction"][0]) == 1


@pytest.mark.slow
def test_every_set_of_runs_has_its_own_panels(monkeypatch, drawing):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self))
    draw_bids([shaded((share,), {"all": NEUTRAL}, {"all": (0, 1)}) for share in (0.5, 0.6)])
    revenue = [axes for axes in drawn[0].axes if axes.get_title("left") == "revenue per auction"]
    assert [axes.containers[0].lines[0].get_ydata()[0] for axes in revenue] == pytest.approx([1 / 3, 0.4], abs=1e-4)
