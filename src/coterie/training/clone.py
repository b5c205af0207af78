"""Cloning: turns an experiment into one that imitates demonstrations, and trains it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from coterie.algorithms.imitation import demonstrations
from coterie.config import schema
from coterie.core.types import CoterieError
from coterie.runs.run import Run
from coterie.training.loop import Report
from coterie.training.start import train

log = logging.getLogger("coterie")
PASSES = 100  # over the demonstrations, unless train.total_steps says otherwise
LEAST_STEPS = 1024  # decisions of one iteration, at least


def clone(
    experiment: str,
    paths: Sequence[str | Path],
    overrides: list[str] | str | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    report: Report | None = None,
) -> Run:
    """Train an experiment's policies to imitate demonstrations; returns the run."""
    if not paths:
        raise schema.ConfigError("--demonstrations: name at least one directory that 'coterie demonstrate' has written")
    given = [overrides] if isinstance(overrides, str) else list(overrides or [])
    return train(experiment, [*cloning_overrides(experiment, paths), *given], out, quiet, report)


def cloning_overrides(experiment: str, paths: Sequence[str | Path]) -> list[str]:
    """The settings that make an experiment imitate; other overrides come after them.

    Groups of the demonstrations learn; others keep their policies as they are. An iteration is one pass over the
    decisions, or several passes over few.
    """
    folders = [demonstrations.find(path).absolute() for path in paths]
    config = schema.load(experiment)
    recorded = demonstrations.groups(folders[0])
    cloned = [name for name in config.groups if name in recorded] or (
        list(config.groups) if len(config.groups) == len(recorded) == 1 else []
    )
    if not cloned:
        raise CoterieError(
            f"'{folders[0]}' has demonstrations of {', '.join(recorded)}; '{experiment}' has the groups "
            f"{', '.join(config.groups)}: none of them is recorded"
        )
    words = []
    listed = json.dumps([str(folder) for folder in folders])
    for name, group in config.groups.items():
        if name in cloned:
            learner = f"groups.{name}.learner"
            words += [f"{learner}.name={_imitator(group.policy)}", f"{learner}.demonstrations={listed}"]
            words.append(f"groups.{name}.preference=individual")  # imitation reads no rewards
        elif group.learner is not None:
            log.warning("group '%s' has no demonstrations; it keeps the policy it begins with", name)
            words.append(f"groups.{name}.learner=none")
        if group.advisor is not None:
            words.append(f"groups.{name}.advisor=none")
    decisions = max(len(demonstrations.load(folders[0], name if name in recorded else None).action) for name in cloned)
    steps = max(decisions, LEAST_STEPS)
    return [
        *words,
        *("train.num_envs=1", "train.shards=1", "train.workers=0", f"train.rollout_steps={steps}"),
        *(f"train.total_steps={PASSES * steps}", "train.evaluate_every=5", "train.checkpoint_every=5"),
    ]


def _imitator(policy: schema.Part | schema.SeatedRun) -> str:
    """The learner that imitates: of texts for language models that write, else of actions."""
    return "sft" if isinstance(policy, schema.Part) and policy.name == "causal_lm" else "bc"


def ensemble_overrides(experiment: str, members: int) -> list[str]:
    """The settings that replace each learning group's network by an ensemble of such networks."""
    words = []
    for name, group in schema.load(experiment).groups.items():
        if group.learner is None or not isinstance(group.policy, schema.Part) or group.policy.name != "network":
            continue
        settings = schema.to_dict(schema.load(experiment))["groups"][name]["policy"]
        network = json.dumps({key: value for key, value in settings.items() if key != "name"})
        path = f"groups.{name}.policy"
        words += [f"{path}.name=ensemble", f"{path}.members={members}", f"{path}.network={network}"]
    if not words:
        raise schema.ConfigError(f"--ensemble: no group of '{experiment}' learns with policy.name=network")
    return words
