"""Says when training made a run worse: below where it began, or below random play, each with its likely cause.

A difference counts where the 95% intervals of the two scores do not overlap. Opponents are left out: what one of their
groups wins, another loses, so that returns below those of step 0 say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coterie.config.schema import Config, GroupConfig, SeatedRun

Evaluation = Mapping[str, Any]  # `Result.to_dict`
FAR = 0.5  # of the greedy score's distance to random play, that drawn actions have lost: others than greedy ones decide


def goes_on(group: GroupConfig) -> bool:
    """Whether a group learns from the weights of an earlier run on."""
    return group.learner is not None and (isinstance(group.policy, SeatedRun) or group.start is not None)


def begins_trained(config: Config) -> bool:
    """Whether every group that learns does so from the weights of an earlier run on: step 0 is no beginner then."""
    learning = [group for group in config.groups.values() if group.learner is not None]
    return bool(learning) and all(map(goes_on, learning))


def shortfalls(
    summary: Mapping[str, Any], config: Config, validations: Sequence[float], training: Mapping[str, float]
) -> list[str]:
    """A sentence for each group and each way in which its training fell short.

    `validations` are the scores in the order of training, that of step 0 first; `training` the mean return of each
    group's latest training episodes, in which actions are drawn.
    """
    found = []
    for name, group in config.groups.items():
        if group.learner is None:
            continue
        of = f"{name}: " if len(config.groups) > 1 else ""
        worse = list(_comparisons(summary, name, _start(summary, group)))
        if worse:
            cause = _cause(summary, name, validations, training.get(name))
            found.append(f"{of}{' and '.join(worse)}. {cause}")
    return found


def _start(summary: Mapping[str, Any], group: GroupConfig) -> str:
    """The policies that a group began with, in words."""
    if "env_steps" in summary["step_0"]:
        return f"the policies that it was forked with (step {summary['step_0']['env_steps']:,})"
    return "the policies it began from (step 0)" if goes_on(group) else "its untrained policies (step 0)"


def _comparisons(summary: Mapping[str, Any], group: str, start: str) -> Iterator[str]:
    """Phrases for the scores below which the best or the last policies of a group lie."""
    best, last, step_0 = (summary[key] for key in ("evaluation", "last", "step_0"))
    random = summary["baselines"]["random"]
    if is_below(best, step_0, group):
        yield f"the best policies ({_score(best, group)}) are worse than {start} ({_score(step_0, group)})"
    elif is_below(last, step_0, group):
        yield f"training ended ({_score(last, group)}) below {start} ({_score(step_0, group)})"
    if is_below(best, random, group):
        yield f"the best policies ({_score(best, group)}) are worse than random play ({_score(random, group)})"


def is_below(one: Evaluation, other: Evaluation, group: str) -> bool:
    """Whether the mean return of one evaluation lies below another's, beyond chance."""
    low, high = one["groups"][group], other["groups"][group]
    top = low["return_mean"] if low["return_ci95"] is None else low["return_ci95"][1]
    bottom = high["return_mean"] if high["return_ci95"] is None else high["return_ci95"][0]
    return bool(top < bottom)


def _cause(summary: Mapping[str, Any], name: str, validations: Sequence[float], training: float | None) -> str:
    """The likely cause, and what to try."""
    step_0 = summary["step_0"]
    if "drawn" in step_0 and _draws_badly(summary, name):
        return (
            f"Likely cause: drawn actions were bad from the beginning, {_score(step_0['drawn'], name)} where greedy "
            f"play had {_score(step_0, name)}, and training learns from them; clone for longer, or lower the "
            "policy's temperature or the learner's entropy"
        )
    if training is not None and _lies_above(training, summary, name):
        return (
            f"Likely cause: greedy play is worse than the drawn actions of training ({training:.2f}), such as by going "
            "in circles; 'coterie eval RUN --stochastic' draws them, and longer training makes them certain"
        )
    instances, episodes = summary["evaluation"].get("instances"), summary["episodes"]
    if instances is not None and 2 * instances <= episodes:
        return (
            f"Likely cause: the task has too few distinct instances ({instances} among {episodes} held-out episodes); "
            "make it larger"
        )
    rate = f"groups.{name}.learner.learning_rate"
    if len(validations) > 2 and max(validations[1:]) > max(validations[0], validations[-1]):
        return f"Likely cause: training rose and fell again; lower {rate}"
    return f"Likely cause: too few steps (train.total_steps), or {rate} is too high"


def _draws_badly(summary: Mapping[str, Any], name: str) -> bool:
    """Whether drawn actions at the start were worth less than half of the greedy ones, above random play."""
    greedy, drawn, random = (
        each["groups"][name]["return_mean"]
        for each in (summary["step_0"], summary["step_0"]["drawn"], summary["baselines"]["random"])
    )
    return bool(greedy > random and greedy - drawn > FAR * (greedy - random))


def _lies_above(training: float, summary: Mapping[str, Any], name: str) -> bool:
    """Whether training had a return above that of greedy play, beyond chance, and no shortfall of its own."""
    last, step_0, random = (
        each["groups"][name] for each in (summary["last"], summary["step_0"], summary["baselines"]["random"])
    )
    top = last["return_mean"] if last["return_ci95"] is None else last["return_ci95"][1]
    return bool(training > top and training >= min(step_0["return_mean"], random["return_mean"]))


def _score(result: Evaluation, group: str) -> str:
    """The mean return, with the success rate where there is one."""
    rate = result.get("success_rate")
    solved = "" if rate is None else f", {rate:.0%} solved"
    return f"{result['groups'][group]['return_mean']:.2f}{solved}"
