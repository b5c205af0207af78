"""Players by name: a policy that needs no training, with settings, or an earlier run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from coterie.config import registry, schema
from coterie.core.lookup import suggest
from coterie.core.types import CoterieError
from coterie.runs.run import Run

CHECKPOINT = "checkpoint="  # after a run's name: its policies as they were then


def named_policy(name: str) -> schema.Part:
    """The policy and settings that a player's name says: `alphabeta`, or `alphabeta:depth=6,ties=first`."""
    policy, _, settings = name.partition(":")
    values = schema.parse_overrides(schema.split_settings(settings))
    return schema.part(registry.POLICIES, {"name": policy} | values, f"player '{policy}'")


class NamedRun(NamedTuple):
    """A player that is a run."""

    path: str
    overrides: list[str]  # changed settings of the policies that learned
    checkpoint: str | None  # None: the name does not say which


def named_run(name: str) -> NamedRun | None:
    """The run that a player's name says: `runs/four`, `runs/four:simulations=400`, or `runs/four:checkpoint=81920`.

    None if no such run exists.
    """
    for path, _, settings in ((name, "", ""), name.rpartition(":")):
        if path and (Path(path) / "config.yaml").is_file():
            words = schema.split_settings(settings)
            checkpoints = [word.removeprefix(CHECKPOINT) for word in words if word.startswith(CHECKPOINT)]
            words = [word for word in words if not word.startswith(CHECKPOINT)]
            groups = Run.open(path).config().groups if words else {}
            learned = [group for group in groups if groups[group].learner is not None] or list(groups)
            overrides = [f"groups.{group}.policy.{word}" for group in learned for word in words]
            return NamedRun(path, overrides, checkpoints[-1] if checkpoints else None)
    return None


def policy_kind(group: schema.GroupConfig) -> str:
    """The policy of a group, in a few words: `network, ppo`, `language: embedded`, `run four`."""
    if isinstance(group.policy, schema.SeatedRun):
        return f"run {Path(group.policy.run).name}"
    model = getattr(group.policy.settings, "lm", None)  # of policies that ask a language model
    name = group.policy.name if model is None else f"{group.policy.name}: {Path(model.name).name}"
    return name if group.learner is None else f"{name}, {group.learner.name}"


def seated_policy(name: str, checkpoint: str = "best") -> schema.Part | schema.SeatedRun:
    """The policy of a group in which a player sits: a run's, one that needs no training, or `package.module:Name`."""
    if (Path(name) / "config.yaml").is_file():
        return schema.SeatedRun(str(Path(name).absolute()), checkpoint)
    head = name.partition(":")[0]
    if head in registry.UNTRAINED:
        return named_policy(name)
    if ":" in name and "/" not in head and "=" not in name:  # `alphabetta:depth=6` is no module
        return schema.part(registry.POLICIES, {"name": name}, f"player '{name}'")
    raise CoterieError(not_a_player(name))


def not_a_player(name: str) -> str:
    """The sentence that refuses a name which is neither a run nor a policy that needs no training."""
    known = registry.UNTRAINED
    return f"'{name}' is neither a run nor a policy that needs no training ({', '.join(known)}){suggest(name, known)}"
