"""The style of figures: colours of one name over several panels, legends outside the axes."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from coterie.config import schema
from coterie.studies import figures, interactive, statistics
from coterie.training import build


def test_a_name_keeps_its_colour_over_panels():
    colours = {"alone": "#0072b2", "taught": "#d55e00"}
    for rows in ({"taught": [(1.0, True)]}, {"alone": [(2.0, True)], "taught": [(1.0, False)]}):
        axes = Figure().add_subplot()
        figures.draw_reaching(axes, rows, colours)
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        assert [to_hex(line.get_color()) for line in dots] == [colours[name] for name in rows]


@pytest.mark.parametrize("name", ["gridworld", "auction", "spread", "tag"])
def test_agents_have_in_pictures_the_colours_of_their_groups_in_charts(name):
    world = build.build_world(schema.load("gridworld-race", [f"world={{name: {name}}}"]).world, 1)
    colours = {sign.meaning: to_hex(np.array(sign.colour) / 255) for sign in world.legend()}
    groups = [spaces.agents for spaces in world.agent_types.values()]  # one group of every kind of agent
    if len(groups) == 1:
        groups = [(agent,) for agent in groups[0]]  # one group of every agent
    for number, agents in enumerate(groups[:4]):
        assert {colours[agent] for agent in agents} == {figures.colour(number)}


@pytest.mark.parametrize("height", [2.5, 4.0, 8.0])
def test_a_legend_lies_just_below_the_axis_label_whatever_the_height(height, drawing):
    figure = Figure(figsize=(6, height), layout="constrained")
    axes = figure.add_subplot()
    for label in ("one", "two"):
        axes.plot(np.arange(3), label=label)
    figures.label_panel(axes, "title", figures.STEPS, "return")
    figures.put_legend(axes)
    figures.as_png(figure)
    figure.draw_without_rendering()
    legend, label = axes.get_legend().get_window_extent(), axes.xaxis.label.get_window_extent()
    assert 0 <= label.y0 - legend.y1 < 0.2 * figure.dpi
    assert legend.y0 > 0
    assert axes.yaxis.label.get_window_extent().x0 > 0.05 * figure.dpi


@pytest.mark.parametrize("turns", [2, 5, 16])
def test_an_axis_of_turns_has_whole_numbers(turns):
    estimate = statistics.Estimate(np.ones(turns), None, None)
    line = figures.Series("tool", "#0072b2", np.arange(1, turns + 1), estimate)
    chart = figures.Chart("reward", figures.TURN, "mean reward", (line,))
    axes = Figure().add_subplot()
    figures.draw_chart(axes, chart)
    ticks = [*axes.get_xticks(), interactive.to_dict(chart)["layout"]["xaxis"]["dtick"]]
    assert all(float(tick).is_integer() for tick in ticks)
