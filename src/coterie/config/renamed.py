"""Old names of settings and of named parts; the config refuses them and says the present name.

In the paths of settings `*` stands for one or more components, the same in the old and the new path.
"""

from __future__ import annotations

import re

SETTINGS = {
    "train.copies": "train.num_envs",
    "train.steps": "train.rollout_steps",
    "train.keep": "train.keep_checkpoints",
    "*.normalise": "*.normalize",
    "*.cache.in_memory": "*.cache.memory_entries",
    "*.http.at_once": "*.http.max_concurrency",
    "*.http.key_variable": "*.http.api_key_env",
    "*.local.prefixes": "*.local.prefix_cache_size",
    "*.local.rows": "*.local.batch_size",
    "*.local.tokens_per_pass": "*.local.max_batch_tokens",
    "*.retry.longest_wait": "*.retry.max_wait",
    "groups.*.policy.layers": "groups.*.policy.last_layers",  # of lora
    "groups.*.policy.targets": "groups.*.policy.target_modules",
    "groups.*.policy.text.adapters": "groups.*.policy.text.lora",
    "groups.*.policy.text.lora.layers": "groups.*.policy.text.lora.last_layers",
    "groups.*.policy.text.lora.targets": "groups.*.policy.text.lora.target_modules",
    "groups.*.advisor.use.way": "groups.*.advisor.use.mode",
    "groups.*.advisor.ask.share": "groups.*.advisor.ask.fraction",
    "groups.*.constraints.way": "groups.*.constraints.action",
    "groups.*.constraints.truth": "groups.*.constraints.ground_truth (none for untold)",
    "groups.*.policy.way": "groups.*.policy.method",
    "groups.*.preference.worth": "groups.*.preference.grade_values",
    "groups.*.preference.way": "groups.*.preference.scope",
    "groups.*.policy.bends": "groups.*.policy.random_feature_init",
    "groups.*.learner.critic.bends": "groups.*.learner.critic.random_feature_init",
    "groups.*.learner.critic.sees": "groups.*.learner.critic.centralized (true for central, false for own)",
    "groups.*.learner.relative": "groups.*.learner.scale_by_std",
    "groups.*.learner.temperature": "groups.*.learner.choices.temperature",  # of maddpg
    "groups.*.learner.delay": "groups.*.learner.policy_delay",
    "groups.*.learner.turns": "groups.*.learner.update_every and groups.*.learner.update_offset",
    "groups.*.learner.noise.share": "groups.*.learner.noise.fraction",
    "groups.*.learner.replay.starts": "groups.*.learner.replay.learning_starts",
    "groups.*.learner.epsilon.share": "groups.*.learner.epsilon.fraction",
    "groups.*.learner.target.rate": "groups.*.learner.target.tau",
    "groups.*.learner.target.period": "groups.*.learner.target.interval",
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
    """Return the present path of a setting that was renamed, with the same prefix; None: it was not renamed."""
    for old, new in SETTINGS.items():
        matched = re.fullmatch(re.escape(old).replace(r"\*", "(.+)"), path)
        if matched:
            for part in matched.groups():
                new = new.replace("*", part, 1)
            return new
    return None


def present_name(where: str, name: str) -> str | None:
    """Return the present name of a part (policy, preference, …) that was renamed; None: it was not renamed."""
    return NAMES.get((where, name))
