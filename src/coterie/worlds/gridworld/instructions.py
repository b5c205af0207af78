"""Compiled loops of a grid world whose teams are told what to do: drawing instructions, and judging who follows.

They surround the steps of `gridworld_kernels.py`, which know nothing of them, so that worlds without instructions pay
nothing for it. The words are in `gridworld_instructions.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.types import Array
from coterie.worlds.gridworld.kernels import Outcome, Places, Rules, begin, first_illegal, keep, play
from coterie.worlds.gridworld.observations import Layout, observe_copy
from coterie.worlds.random import uniform

FIRST, LAST = range(2)  # what an instruction asks of its colour


class Told(NamedTuple):
    """What the team of each copy is told in this episode; decides the future together with `Places`."""

    sentence: Array  # [N] int32: number of the instruction, −1 without
    broken: Array  # [N] bool: a target was collected out of turn


class Telling(NamedTuple):
    """Which instructions there are, and where observations hold them."""

    phrasings: int  # wordings of each meaning; 0: there are no instructions
    first_phrasing: int
    drawn_phrasings: int  # how many, from the first on, episodes draw from
    number: tuple[int, int]  # where a row's numbers of sentences begin, and how many there are
    colours: tuple[int, int]  # the same of targets' colours: first index, and stride per target; −1: by order alone


@njit(cache=True)
def out_of_turn(told: Told, telling: Telling, present: Array, n: int, k: int) -> bool:
    """Whether copy n's instruction forbids to collect target k, still there, before some that are `present` [K]."""
    targets = len(present)
    meaning = told.sentence[n] // telling.phrasings
    colour = meaning % targets
    if meaning // targets == FIRST:
        return k != colour and present[colour]
    return k == colour and present.sum() > 1


@njit(cache=True)
def _tell(places: Places, told: Told, telling: Telling, n: int) -> None:
    """Draw copy n's instruction: one meaning is as likely as another, and so is every wording."""
    meaning = int(uniform(places.random, n) * 2 * places.targets.shape[1])  # first or last, of every colour
    phrasing = telling.first_phrasing + int(uniform(places.random, n) * telling.drawn_phrasings)
    told.sentence[n] = meaning * telling.phrasings + phrasing
    told.broken[n] = False


@njit(cache=True)
def tell(places: Places, told: Told, telling: Telling) -> None:
    """Draw an instruction for every copy."""
    for n in range(len(places.time)):
        _tell(places, told, telling, n)


@njit(cache=True)
def _judge(places: Places, told: Told, telling: Telling, rules: Rules, before: Array, out: Outcome, n: int) -> None:
    """Pay anew for what was collected in turn; `before` [K] are the targets that were there before the step.

    Who comes at the same time does not come before. Only teams are told anything, so all are paid alike.
    """
    paid = np.float32(rules.step_reward)
    for k in range(len(before)):
        if before[k] and not places.present[n, k]:
            if out_of_turn(told, telling, before, n, k):
                told.broken[n] = True
            else:
                paid += np.float32(rules.target_reward)
    out.success[n] = out.success[n] and not told.broken[n]
    if out.success[n]:
        paid += np.float32(rules.done_reward)
    out.reward[n] = paid


@njit(cache=True)
def _observe_copy(told: Told, telling: Telling, n: int, out: Array) -> None:
    """Write the number of what is asked for, and which target has which colour where their order does not tell."""
    start, count = telling.number
    colours, stride = telling.colours
    for a in range(out.shape[1]):
        out[n, a, start : start + count] = 0.0
        out[n, a, start + told.sentence[n]] = 1.0
        if colours >= 0:
            targets = count // telling.phrasings // 2
            out[n, a, colours : colours + targets * stride] = 0.0
            for k in range(targets):
                out[n, a, colours + k * stride + k] = 1.0


@njit(cache=True)
def observe(told: Told, telling: Telling, out: Array) -> None:
    """Write what every copy is told into `out` [N, A, D], beside what `gridworld_views` writes there."""
    for n in range(len(told.sentence)):
        _observe_copy(told, telling, n, out)


@njit(cache=True)
def step(
    now: tuple[Places, Told],
    last: tuple[Places, Told],
    telling: Telling,
    rules: tuple[Rules, Layout],
    actions: Array,
    out: Outcome,
) -> int:
    """As `gridworld_kernels.step`, and judge who follows."""
    places, told = now
    illegal = first_illegal(actions, rules[0].messages)
    if illegal >= 0:
        return illegal
    distance = np.empty((rules[0].size, rules[0].size), np.int32)
    queue = np.empty(rules[0].size * rules[0].size, np.int32)
    for n in range(len(places.time)):
        before = places.present[n].copy()
        play(places, rules[0], actions, out, n)
        _judge(places, told, telling, rules[0], before, out, n)
        if out.ended[n]:
            observe_copy(places, rules[0], rules[1], n, out.final_observation)
            _observe_copy(told, telling, n, out.final_observation)
            keep(places, last[0], n)
            last[1].sentence[n], last[1].broken[n] = told.sentence[n], told.broken[n]
            begin(places, rules[0], n, distance, queue)
            _tell(places, told, telling, n)
        observe_copy(places, rules[0], rules[1], n, out.observation)
        _observe_copy(told, telling, n, out.observation)
    return -1
