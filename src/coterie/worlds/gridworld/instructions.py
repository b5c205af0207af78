"""Instructions to a team: drawing them, checking that targets are collected in order, and observing them.

An instruction says which colour to collect first or last. `kernels.step_with_instructions` calls these functions around
the ordinary step, so that worlds without instructions pay nothing for them. The sentences are in `phrasings.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coterie.core.jit import device_function
from coterie.core.splitmix import uniform
from coterie.core.types import Array
from coterie.nn.launch import kernel

if TYPE_CHECKING:
    from coterie.worlds.gridworld.kernels import GridState, Rules, StepOutput

FIRST, LAST = range(2)  # the order that an instruction asks for


class InstructionState(NamedTuple):
    """The instruction of each copy's episode; part of the world's saved state."""

    sentence: Array  # [N] int32: index into `phrasings.sentences`, −1 without instructions
    broken: Array  # [N] bool: a target was collected out of order


class InstructionRules(NamedTuple):
    """The range of instructions, and their positions in observations."""

    phrasings: int  # phrasings of each meaning; 0: the world has no instructions
    first_phrasing: int  # episodes draw from `num_phrasings` phrasings, starting with this one
    num_phrasings: int
    sentence_slot: tuple[int, int]  # of the one-hot sentence in an observation row: first index and length
    colour_slot: tuple[int, int]  # of the targets' one-hot colours: first index (−1: absent) and stride per target


@device_function
def violates_order(instruction: InstructionState, rules: InstructionRules, present: Array, n: int, k: int) -> bool:
    """Whether collecting target k before the others that are `present` [K] breaks the instruction of copy n."""
    targets = len(present)
    meaning = instruction.sentence[n] // rules.phrasings
    colour = meaning % targets
    if meaning // targets == FIRST:
        return k != colour and present[colour]
    left = 0
    for other in range(targets):
        left += present[other]
    return k == colour and left > 1


@kernel
def draw_instruction(n: int, grid: GridState, instruction: InstructionState, rules: InstructionRules) -> None:
    """Draw an instruction: a uniform meaning, then a uniform phrasing."""
    meaning = int(uniform(grid.random, n) * 2 * grid.targets.shape[1])  # FIRST or LAST, for every colour
    phrasing = rules.first_phrasing + int(uniform(grid.random, n) * rules.num_phrasings)
    instruction.sentence[n] = meaning * rules.phrasings + phrasing
    instruction.broken[n] = False


@device_function
def reward_in_order(
    grid: GridState,
    instruction: InstructionState,
    instruction_rules: InstructionRules,
    rules: Rules,
    before: Array,
    out: StepOutput,
    n: int,
) -> None:
    """Replace the reward of copy n: only targets collected in order pay. `before` [K]: targets present before the step.

    Targets collected in the same step do not precede each other. Instructions exist in cooperative mode only, so all
    agents receive the same reward.
    """
    reward = np.float32(rules.step_reward)
    for k in range(len(before)):
        if before[k] and not grid.present[n, k]:
            if violates_order(instruction, instruction_rules, before, n, k):
                instruction.broken[n] = True
            else:
                reward += np.float32(rules.target_reward)
    out.success[n] = out.success[n] and not instruction.broken[n]
    if out.success[n]:
        reward += np.float32(rules.done_reward)
    for a in range(out.reward.shape[1]):
        out.reward[n, a] = reward


@kernel
def observe_instructions(n: int, instruction: InstructionState, rules: InstructionRules, out: Array) -> None:
    """Write the one-hot sentence, and the targets' colours where the order of entries does not imply them.

    `out` [N, A, D] are the observations.
    """
    start, count = rules.sentence_slot
    colours, stride = rules.colour_slot
    for a in range(out.shape[1]):
        for i in range(count):
            out[n, a, start + i] = 0.0
        out[n, a, start + instruction.sentence[n]] = 1.0
        if colours >= 0:
            targets = count // rules.phrasings // 2
            for k in range(targets):
                for j in range(stride):
                    out[n, a, colours + k * stride + j] = 1.0 if j == k else 0.0
