"""Settings that were renamed are refused with their present path."""

import pytest

from coterie.config import renamed, schema
from coterie.config.schema import ConfigError


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("train.copies", "train.num_envs"),
        ("groups.a.policy.lm.http.at_once", "groups.a.policy.lm.http.max_concurrency"),
        ("groups.a.policy.text.lm.local.rows", "groups.a.policy.text.lm.local.batch_size"),
        ("groups.a.preference.lm.retry.longest_wait", "groups.a.preference.lm.retry.max_wait"),
        ("groups.a.advisor.normalise", "groups.a.advisor.normalize"),
        ("groups.a.policy.text.lora.layers", "groups.a.policy.text.lora.last_layers"),
        ("groups.train.copies.policy", None),
        ("train.num_envs", None),
    ],
)
def test_the_present_path_keeps_the_prefix(old, new):
    assert renamed.present_setting(old) == new


@pytest.mark.parametrize(
    ("experiment", "override", "message"),
    [
        ("gridworld-meet", "train.copies=4", r"train\.copies is now train\.num_envs"),
        (
            "gridworld-lm",
            "groups.model.policy.lm.local.rows=4",
            r"local\.rows is now groups\.model\.policy\.lm\.local\.batch_size",
        ),
        ("gridworld-lm", "groups.model.policy.normalise=mean", r"groups\.model\.policy\.normalize"),
        ("gridworld-lm-lora", "groups.model.policy.layers=4", r"is now groups\.model\.policy\.last_layers"),
        (
            "gridworld-meet",
            "groups.team.policy.layers=4",
            r"policy\.layers: no such setting",
        ),  # never a setting of networks
    ],
)
def test_a_config_with_an_old_setting_is_refused(experiment, override, message):
    with pytest.raises(ConfigError, match=message):
        schema.load(experiment, [override])
