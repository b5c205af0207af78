"""Central critics: what they see, that it helps, how shards and groups stay aligned, and where they are refused."""

import dataclasses

import numpy as np
import pytest

from coterie.config import schema
from coterie.core.decisions import Joint, StateRows
from coterie.nn.packing import table_state
from coterie.testing.comparison import expect_equal, leaves
from coterie.training import build, workers
from coterie.training.runner import Runner
from helpers.ppo import make_learner, values_of
from helpers.run import train, written
from helpers.small_worlds import Peers, PeersSettings, generator, network, spec_in

TABLE = """\
world: {{name: "helpers.small_worlds:Peers", shows_state: {shows_state}}}
groups:
  ones: {{agents: "left_*", policy: {{name: network, hidden: [8], compiled: {compiled}}},
         learner: {{name: ppo, central_critic: {central}, learning_rate: 0.01}}}}
  twos: {{agents: "right_*", policy: {{name: network, hidden: [8], memory: {memory}}}, parameters: {parameters},
         learner: {{name: ppo, central_critic: {central}, learning_rate: 0.01}}}}
train: {{num_envs: 32, rollout_steps: 8, total_steps: 7680, shards: {shards}, evaluate_episodes: 4, video: false,
        tensorboard: false}}
"""


def table(tmp_path, shows_state=False, central=True, shards=1, parameters="shared", memory=0, compiled=True, words=()):
    text = TABLE.format(
        shows_state=shows_state, central=central, shards=shards, parameters=parameters, memory=memory, compiled=compiled
    )
    return schema.load(str(written(tmp_path / "table.yaml", text)), list(words))


class Seated:
    """A config's table without the loop around it."""

    def __init__(self, settings):
        self.settings, self.iteration = settings, 0
        self.groups = build.build_groups(settings, build.build_world(settings.world, 1))
        self.workers = workers.LocalWorkers(settings, self.groups)

    def joint(self):
        self.iteration += 1
        rollout = self.workers.play(self.iteration)
        spaces = {group.name: group.actor.group_spec.spaces for group in self.groups}
        return Joint(rollout.decisions, self.iteration, 0.0, spaces, rollout.state)

    def advance(self):
        joint = self.joint()
        return {
            group.name: group.learner.learn(joint.decisions[group.name], joint, generator(self.iteration))
            for group in self.groups
        }

    def state(self):
        learned = {g.name: {"policy": g.policy.state(), "learner": g.learner.state()} for g in self.groups}
        return {"groups": learned, "shards": self.workers.save(), "iteration": self.iteration}

    def load(self, state):
        for group in self.groups:
            group.policy.load(state["groups"][group.name]["policy"])
            group.learner.load(state["groups"][group.name]["learner"])
        self.workers.load(state["shards"])
        self.iteration = state["iteration"]


# What it is for -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shows_state", "parameters", "memory", "compiled"),
    [(True, "shared", 0, True), (False, "shared", 0, True), (False, "individual", 3, False)],
)
def test_it_predicts_what_depends_on_others(tmp_path, shows_state, parameters, memory, compiled):
    fields = {"shows_state": shows_state, "parameters": parameters, "memory": memory, "compiled": compiled}
    words = [f"groups.{g}.learner.gae_lambda=0" for g in ("ones", "twos")]
    words += [f"groups.{g}.learner.gamma=0" for g in ("ones", "twos")]
    found = {}
    for central in (True, False):
        seated = Seated(table(tmp_path, central=central, words=words, **fields))
        for _ in range(15):
            latest = seated.advance()
        found[central] = [latest[group]["explained_variance"] for group in ("ones", "twos")]
    assert min(found[True]) > 0.9
    assert max(found[False]) < 0.2


# What it sees -------------------------------------------------------------------------------------------


def test_the_worlds_state_is_written_at_every_row(tmp_path):
    seated = Seated(table(tmp_path, shows_state=True))
    runner = seated.workers.host.runners[0]
    shows_state, step = [runner.timestep.state.copy()], runner.world.step
    finals = []

    def watched(actions):
        timestep = step(actions)
        shows_state.append(timestep.state.copy())
        finals.extend(timestep.final_state[timestep.ended].copy())
        return timestep

    runner.world.step = watched
    joint = seated.joint()
    assert joint.state.rows.shape == (9, 32, 4)
    assert np.array_equal(joint.state.rows, shows_state)
    assert np.array_equal(joint.state.finals, finals)
    assert len(finals) > 32
    assert (joint.state.finals[:, 3] == 3).all()  # the clock at an episode's end
    assert table_state(joint) is joint.state


@pytest.mark.parametrize("shows_state", [True, False])
def test_last_states_belong_to_the_moments_of_every_groups_finals(tmp_path, shows_state):
    seated = Seated(table(tmp_path, shows_state=shows_state))
    joint = seated.joint()
    ones, twos = (joint.decisions[name] for name in ("ones", "twos"))
    assert ones.terminated.any()
    assert not ones.truncated.any()
    assert twos.truncated.any()
    assert not twos.terminated.any()
    assert np.array_equal(ones.finals.at, twos.finals.at)
    state = table_state(joint)
    group_specs = [0, 1, 2] if shows_state else [0, 1, 3]  # where coins lie in the state
    assert np.array_equal(state.finals[:, group_specs[0]], ones.finals.observation[:, 0, 0])
    assert np.array_equal(state.finals[:, group_specs[1:]], twos.finals.observation[:, :, 0])
    assert np.array_equal(state.rows[..., group_specs[0]], ones.observation[..., 0, 0])
    assert np.array_equal(state.rows[..., group_specs[1:]], twos.observation[..., 0])


@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_truncation_bootstraps_from_the_last_state(tmp_path, parameters):
    seated = Seated(table(tmp_path, shows_state=True, parameters=parameters))
    for _ in range(2):
        seated.advance()
    joint, learner = seated.joint(), seated.groups[1].learner
    own, state = joint.decisions["twos"], joint.state
    values = values_of(learner, own.observation, state=state.rows)
    found = learner.next_values(own, state, values)
    expected = values_of(learner, own.finals.observation, state=state.finals)
    t, n = own.finals.at.T
    assert np.allclose(found[t, n], expected, atol=1e-6)
    other = learner.next_values(own, StateRows(state.rows, -state.finals), values)
    assert np.abs(other - found).max() > 1e-3


def test_every_agent_sees_its_own_copys_state():
    world = Peers(PeersSettings(shows_state=True), 3)
    for parameters in ("shared", "individual"):
        where = dataclasses.replace(spec_in(world, agent_type="right", parameters=parameters), state_size=4)
        one = make_learner(where, policy=network(where), central_critic=True)
        state = generator().standard_normal((5, 3, 4), np.float32)
        x = one.policy.inputs(np.zeros((5, 3, 2, 2), np.float32))
        seen = one.policy.restore_order(one.add_context(x, None, state), (5, 3, 2))
        assert np.array_equal(seen[..., -4:], np.repeat(state[:, :, None], 2, axis=2))
        rows = state.reshape(-1, 4)
        one.state_normalizer.update([rows * 3 + 1])
        seen = one.policy.restore_order(one.add_context(x, None, state), (5, 3, 2))
        expected = ((rows - (rows * 3 + 1).mean(0)) / (rows * 3).std(0)).reshape(5, 3, 1, 4)
        assert np.allclose(seen[..., -4:], np.repeat(expected, 2, axis=2), atol=1e-5)


def test_states_are_normalised_once_learned_from(tmp_path):
    seated = Seated(table(tmp_path, shows_state=True))
    joint = seated.joint()
    learner = seated.groups[0].learner
    learner.learn(joint.decisions["ones"], joint, generator())
    rows = joint.state.rows[:-1].reshape(-1, 4)
    assert np.allclose(learner.state_normalizer.mean[0], rows.mean(0), atol=1e-6)
    assert np.allclose(learner.state_normalizer.variance[0], rows.var(0), atol=1e-6)


def test_the_actor_does_not_see_it(tmp_path):
    seated = Seated(table(tmp_path))
    for group in seated.groups:
        own = group.policy.layout.size + group.policy.shape.extra
        assert group.policy.net.sizes[0] == own
        assert group.learner.critic_network.sizes[0] == own + 1 + 2 * 2  # everybody's observations
    shows_state = Seated(table(tmp_path, shows_state=True))
    assert shows_state.groups[0].learner.critic_network.sizes[0] == 1 + 4


# Shards, resuming, refusing --------------------------------------------------------------------------------


@pytest.mark.parametrize("shows_state", [True, False])
def test_shards_are_joined_in_their_order(tmp_path, shows_state):
    settings = table(tmp_path, shows_state=shows_state, shards=4)
    seated = Seated(settings)
    parts = [build.build_runner(settings, shard, seated.groups).play(8, 1) for shard in range(4)]
    spaces = {group.name: group.actor.group_spec.spaces for group in seated.groups}
    apart = [table_state(Joint(p.decisions, 1, 0.0, spaces, p.state)) for p in parts]
    joint = seated.joint()
    both = table_state(joint)
    assert np.array_equal(both.rows, np.concatenate([state.rows for state in apart], axis=1))
    index = joint.decisions["ones"].finals.at
    for shard, state in enumerate(apart):
        here = index[:, 1] // 8 == shard
        assert here.sum() == len(state.finals) > 0
        assert np.array_equal(both.finals[here], state.finals)


@pytest.mark.slow
@pytest.mark.parametrize(("shows_state", "parameters", "memory"), [(True, "individual", 0), (False, "shared", 3)])
def test_a_loaded_table_goes_on_exactly(tmp_path, shows_state, parameters, memory):
    def make():
        return Seated(table(tmp_path, shows_state=shows_state, shards=2, parameters=parameters, memory=memory))

    seated, other = make(), make()
    for _ in range(2):
        seated.advance()
    state = seated.state()
    kept = leaves(state)
    rest = [seated.advance() for _ in range(3)]
    expect_equal("what was saved", kept, state)
    other.advance()
    other.load(state)
    assert rest == [other.advance() for _ in range(3)]
    expect_equal("the end", seated.state(), other.state())


@pytest.mark.slow
def test_a_whole_run_trains_and_loads(tmp_path, forked):
    text = TABLE.format(shows_state=True, central=True, shards=2, parameters="individual", memory=3, compiled=True)
    path = written(tmp_path / "table.yaml", text)
    run = train(tmp_path / "run", "train.total_steps=768", "train.workers=1", experiment=path)
    same = train(tmp_path / "same", "train.total_steps=768", experiment=path)
    assert [r["ones/value_loss"] for r in run.metrics() if "ones/value_loss" in r] == [
        r["ones/value_loss"] for r in same.metrics() if "ones/value_loss" in r
    ]  # child processes hand their states over too


TURNS = """\
world: {name: tictactoe}
groups: {all: {policy: {name: network}, learner: {name: ppo, central_critic: true}}}
"""


def test_it_is_refused_where_agents_take_turns(tmp_path, coterie_):
    path = written(tmp_path / "turns.yaml", TURNS)
    said = "groups.all.learner: central_critic=true"
    settings = schema.load(str(path))
    with pytest.raises(schema.ConfigError, match=said):
        build.build_groups(settings, build.build_world(settings.world, 1))
    for command in (("config", "validate", path), ("train", path, "--out", tmp_path / "run")):
        code, _, err = coterie_(*command)
        assert code == 2
        assert said in err
    assert not (tmp_path / "run").exists()


def test_a_runner_of_a_world_without_a_state_has_none(tmp_path):
    seated = Seated(table(tmp_path))
    assert isinstance(seated.workers.host.runners[0], Runner)
    assert seated.joint().state is None
