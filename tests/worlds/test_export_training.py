"""Our worlds in other libraries: Gymnasium's checker, and training under Stable-Baselines3 and RLlib."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.types import CoterieError
from coterie.worlds.adapters.export import GymnasiumEnv
from coterie.worlds.gridworld import world

ROOT = Path(__file__).parent.parent.parent
SMALL = {"grid_size": 4, "num_targets": 1, "max_steps": 30}


def test_one_agent_passes_gymnasiums_own_check():
    from gymnasium.utils.env_checker import check_env

    check_env(world.single_env(render_mode="rgb_array", **SMALL), skip_render_check=True)


def test_two_agents_are_no_gymnasium_environment():
    with pytest.raises(CoterieError, match=r"one agent.*2"):
        GymnasiumEnv(world.Gridworld(world.GridworldSettings(num_agents=2), 1), "gridworld")


def played(model, env, episodes=20):
    """Mean return of greedy episodes."""
    returns = []
    for seed in range(episodes):
        observation, _ = env.reset(seed=10_000 + seed)
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + reward, terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


@pytest.mark.slow
def test_a_single_agent_learns_under_stable_baselines3():
    sb3 = pytest.importorskip("stable_baselines3", reason="pip install 'coterie[bench]' brings Stable-Baselines3")
    env = world.single_env(**SMALL)
    model = sb3.PPO("MlpPolicy", env, n_steps=512, batch_size=128, learning_rate=1e-3, seed=0, device="cpu")
    before = played(model, world.single_env(**SMALL))
    model.learn(6_000)
    after = played(model, world.single_env(**SMALL))
    assert after > 25 > before  # 10 for the target, 20 for being done, 0.1 for every step


@pytest.mark.slow
def test_a_team_learns_under_stable_baselines3_through_supersuit():
    sb3 = pytest.importorskip("stable_baselines3", reason="pip install 'coterie[bench]' brings Stable-Baselines3")
    supersuit = pytest.importorskip("supersuit", reason="pip install 'coterie[bench]' brings SuperSuit")
    vector = supersuit.pettingzoo_env_to_vec_env_v1(world.parallel_env(num_agents=2, **SMALL))
    env = supersuit.concat_vec_envs_v1(vector, 2, base_class="stable_baselines3")
    torch.manual_seed(0)  # SuperSuit's vector environment takes no seed from Stable-Baselines3
    model = sb3.PPO("MlpPolicy", env, n_steps=256, batch_size=256, learning_rate=1e-3, device="cpu")
    before = steps_taken(model)
    model.learn(6_000)
    assert steps_taken(model) < 0.7 * before


def steps_taken(model, episodes=20):
    """Mean length of episodes in which the model plays every agent."""
    env, steps = world.parallel_env(num_agents=2, **SMALL), 0
    for seed in range(episodes):
        observations, _ = env.reset(seed=10_000 + seed)
        while env.agents:
            actions = {a: int(model.predict(o, deterministic=False)[0]) for a, o in observations.items()}
            observations, *_ = env.step(actions)
            steps += 1
    return steps / episodes


@pytest.mark.slow
def test_the_grid_world_learns_under_rllib():
    python = ROOT / ".venv-rllib" / "bin" / "python"
    if not python.exists():
        pytest.skip("RLlib pins an older Gymnasium and needs an environment of its own: make peers")
    command = [str(python), str(ROOT / "benchmarks" / "peers" / "rllib_gridworld.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["best"] > found["first"] + 5
