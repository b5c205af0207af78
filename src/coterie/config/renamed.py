"""Settings and names that earlier versions spelled differently: refused, with the present spelling.

Patterns are paths in which `*` stands for one group or any other part. A value is what to write instead.
"""

from __future__ import annotations

import fnmatch

SETTINGS = {
    "train.copies": "train.num_envs",
    "train.steps": "train.rollout_steps",
    "train.keep": "train.keep_checkpoints",
    "groups.*.preference.way": "groups.*.preference.scope",
    "groups.*.policy.bends": "groups.*.policy.random_feature_init",
    "groups.*.learner.critic.bends": "groups.*.learner.critic.random_feature_init",
    "groups.*.learner.critic.sees": "groups.*.learner.critic.centralized (true for central, false for own)",
    "groups.*.learner.relative": "groups.*.learner.scale_by_std",
    "groups.*.learner.delay": "groups.*.learner.policy_delay",
    "groups.*.learner.turns": "groups.*.learner.update_every and groups.*.learner.update_offset",
    "groups.*.learner.noise.share": "groups.*.learner.noise.fraction",
    "groups.*.learner.target.rate": "groups.*.learner.target.tau",
}
NAMES = {  # (where, old name) -> present name
    ("preference", "unchanged"): "individual",
    ("preference", "shaped"): "potential_shaping",
    ("preference", "preferred"): "pairwise_lm",
    ("preference", "instructed"): "instruction_lm",
    ("preference", "rated"): "reward_model",
    ("policy", "heuristic"): "expert",
    ("advisor", "heuristic"): "expert",
}


def present_setting(path: str) -> str | None:
    """What a setting's old path is called now, with the same group; None: it was never called so."""
    for old, new in SETTINGS.items():
        if fnmatch.fnmatchcase(path, old):
            given, pattern = path.split("."), old.split(".")
            wild = [part for part, sign in zip(given, pattern, strict=False) if sign == "*"]
            return new.replace("*", wild[0]) if wild else new
    return None


def present_name(where: str, name: str) -> str | None:
    """What an old name is called now; None: it was never called so."""
    return NAMES.get((where, name))
