"""Tiny demonstrations for the tests of imitation."""

from coterie.studies.demonstrate.record import DemonstrationSpec, record

GRID = ["world.grid_size=4", "world.max_steps=20", "groups.team.policy.hidden=[16]"]
FAST = [
    *("train.rollout_steps=64", "train.total_steps=512", "train.evaluate_every=2", "train.evaluate_episodes=4"),
    *("train.checkpoint_every=1", "train.video=false", "train.tensorboard=false"),
]


def expert(out, episodes=4, experiment="gridworld-cooperative", overrides=GRID, **fields):
    """Demonstrations of a scripted expert."""
    spec = DemonstrationSpec(experiment, fields.pop("policy", "expert"), episodes, **fields)
    record(spec, out, overrides)
    return out
