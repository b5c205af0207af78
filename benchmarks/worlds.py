"""Third-party environments: which play, train and give the returns of a bare loop, for docs/results/worlds.json.

    python benchmarks/worlds.py --site .venv-worlds            # installs what it can there, then tries everything
    python benchmarks/worlds.py --only gymnasium/Acrobot-v1    # some of them anew

Every environment is tried in a process of its own: the conformance tests, a short training with PPO, and episodes of
random actions beside a bare loop that takes the same actions from the same seeds. Environments whose package cannot be
installed are listed with the reason.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from interleave import commit

ROOT = Path(__file__).parent.parent
OUT = ROOT / "docs" / "results" / "worlds.json"
STEPS = 200  # of the comparison
COPIES = 8  # of our world; the first is compared, all are timed
LIMIT = 90  # seconds for one environment


@dataclass(frozen=True)
class Case:
    """An environment, its settings and the packages that it needs besides `coterie[worlds]`."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    packages: tuple[str, ...] = ()


LBF, RWARE = ("lbforaging==2.0.0", "networkx"), ("rware==2.0.0", "networkx", "pyglet==1.5.27")
MULTIGRID, MO = ("multigrid==0.1.0", "aenum"), ("mo-gymnasium==1.3.2",)
MUJOCO = ("mujoco==3.3.0", "glfw", "etils", "imageio")
MINATAR, TETRIS = ("minatar==1.0.15",), ("tetris-gymnasium==0.3.1", "opencv-python-headless")
POPGYM, SPIEL = ("popgym==1.0.7",), ("open_spiel==2.0.2",)
ROBOTICS, RLCARD = (*MUJOCO, "gymnasium-robotics==1.4.2"), ("rlcard==1.2.0", "termcolor")
MAGENT, MOMA = ("magent2==0.3.4",), ("momaland==0.2.0", "pymunk==6.11.1")
CASES = [
    *(
        Case(f"gymnasium/{name}")
        for name in ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")
    ),
    *(
        Case(f"gymnasium/{name}")
        for name in ("Pendulum-v1", "LunarLander-v3", "FrozenLake-v1", "Taxi-v4", "Blackjack-v1")
    ),
    Case("gymnasium/CliffWalking-v1", {"max_episode_steps": 200}),
    Case("gymnasium/BipedalWalker-v3", {"fresh": True}),
    *(Case(f"minigrid/{name}") for name in ("DoorKey-5x5", "Empty-8x8", "FourRooms", "LavaGapS5")),
    *(Case(f"mpe/{name}") for name in ("simple_spread", "simple_tag", "simple_speaker_listener", "simple_adversary")),
    *(Case(f"mpe/{name}") for name in ("simple_push", "simple_crypto", "simple_world_comm")),
    *(Case(f"pettingzoo/classic/{name}") for name in ("tictactoe_v3", "connect_four_v3", "rps_v2")),
    Case("pettingzoo/classic/chess_v6", {"max_episode_steps": 60}, ("chess==1.11.2",)),
    Case("pettingzoo/sisl/multiwalker_v9", {"max_episode_steps": 60}),
    Case("pettingzoo/sisl/pursuit_v5", {"max_episode_steps": 60}),
    Case("pettingzoo/butterfly/knights_archers_zombies_v11", {"fresh": True, "max_episode_steps": 60}),
    Case("gymnasium/lbforaging:Foraging-8x8-2p-3f-v3", {"agents": "tuple"}, LBF),
    Case("gymnasium/lbforaging:Foraging-10x10-4p-3f-v3", {"agents": "tuple"}, LBF),
    Case("gymnasium/rware:rware-tiny-2ag-v2", {"agents": "tuple", "max_episode_steps": 100}, RWARE),
    Case("gymnasium/rware:rware-small-4ag-v2", {"agents": "tuple", "max_episode_steps": 100}, RWARE),
    Case("gymnasium/multigrid.envs:MultiGrid-Empty-5x5-v0", {"agents": "tuple", "options": {"agents": 2}}, MULTIGRID),
    Case("gymnasium/mo_gymnasium:deep-sea-treasure-v0", {"scalarize": [1, 0.1]}, MO),
    Case("gymnasium/mo_gymnasium:resource-gathering-v0", {"scalarize": [1, 1, 1], "max_episode_steps": 100}, MO),
    *(Case(f"gymnasium/{name}", {}, MUJOCO) for name in ("InvertedPendulum-v5", "Hopper-v5", "HalfCheetah-v5")),
    *(Case(f"gymnasium/popgym:popgym-{n}-v0", {}, POPGYM) for n in ("RepeatPreviousEasy", "CountRecallEasy")),
    Case(
        "gymnasium/ale_py:ALE/Breakout-v5",
        {"options": {"obs_type": "ram"}, "max_episode_steps": 200},
        ("ale-py==0.12.1",),
    ),
    Case("gymnasium/gym_simplegrid:SimpleGrid-4x4-v0", {"max_episode_steps": 50}, ("gym-simplegrid==1.1.0",)),
    *(Case(f"openspiel/{name}", {}, SPIEL) for name in ("kuhn_poker", "leduc_poker", "liars_dice", "tic_tac_toe")),
    *(Case(f"openspiel/{name}", {}, SPIEL) for name in ("connect_four", "backgammon", "breakthrough", "hex")),
    Case("openspiel/goofspiel", {"options": {"num_cards": 4, "imp_info": True, "points_order": "descending"}}, SPIEL),
    Case("gymnasium/highway_env:highway-fast-v0", {}, ("highway-env==1.12.1",)),
    *(
        Case(f"gymnasium/minatar.gym:MinAtar/{name}-v1", {"max_episode_steps": 200}, MINATAR)
        for name in ("Asterix", "Freeway", "Seaquest", "SpaceInvaders")
    ),
    Case("gymnasium/minatar.gym:MinAtar/Breakout-v1", {"fresh": True, "max_episode_steps": 200}, MINATAR),
    Case("gymnasium/tetris_gymnasium.envs:tetris_gymnasium/Tetris", {"max_episode_steps": 200}, TETRIS),
    Case("gymnasium/nasim:Tiny-v0", {"seed_globals": True, "max_episode_steps": 60}, ("nasim==0.12.0", "prettytable")),
    Case(
        "gymnasium/flappy_bird_gymnasium:FlappyBird-v0",
        {"options": {"use_lidar": False}},
        ("flappy-bird-gymnasium==0.4.0",),
    ),
    Case("gymnasium/memory_gym:MortarMayhem-Grid-v0", {}, ("memory-gym==1.0.2",)),
    Case("gymnasium/gym_anytrading:stocks-v0", {"max_episode_steps": 60}, ("gym-anytrading==2.0.0",)),
    Case(
        "gymnasium/gym_pusht:gym_pusht/PushT-v0",
        {"max_episode_steps": 60},
        ("gym-pusht==0.1.8", "pymunk==6.11.1", "shapely", "opencv-python-headless"),
    ),
    Case("gymnasium/panda_gym:PandaReach-v3", {}, ("panda-gym==3.0.7", "pybullet==3.2.7")),
    Case("gymnasium/gymnasium_2048:gymnasium_2048/TwentyFortyEight-v0", {}, ("gymnasium-2048==0.1.2",)),
    Case("gymnasium/gymnasium_robotics:PointMaze_UMaze-v3", {"max_episode_steps": 60}, ROBOTICS),
    Case("gymnasium/gymnasium_robotics:FetchReach-v4", {}, ROBOTICS),
    Case("gymnasium/Ant-v5", {"max_episode_steps": 60}, MUJOCO),
    Case(
        "gymnasium/mobile_env:mobile-small-ma-v0",
        {"agents": "tuple", "fresh": True},
        ("mobile-env==2.1.0", "shapely", "svgpath2mpl"),
    ),
    Case(
        "gymnasium/ale_py:ALE/Pong-v5",
        {"grey": True, "resize": [84, 84], "frame_stack": 4, "max_episode_steps": 60},
        ("ale-py==0.12.1",),
    ),
    Case("minigrid/BabyAI-GoToRedBall-v0"),
    Case("mpe/simple_reference"),
    *(Case(f"pettingzoo/classic/{name}", {}, RLCARD) for name in ("leduc_holdem_v4", "texas_holdem_v4")),
    Case("pettingzoo/classic/go_v5", {"options": {"board_size": 5}, "max_episode_steps": 60}),
    Case("pettingzoo/magent2.environments.battle_v4", {"options": {"map_size": 16}, "max_episode_steps": 30}, MAGENT),
    Case("pettingzoo/momaland.envs.item_gathering.item_gathering", {"scalarize": [1, 1, 1]}, MOMA),
    Case("pettingzoo/momaland.envs.breakthrough.breakthrough", {"scalarize": [1, 0.1, 0.1, 0.1]}, MOMA),
    *(Case(f"openspiel/{name}", {}, SPIEL) for name in ("hanabi", "dark_hex", "phantom_ttt", "gin_rummy", "hearts")),
    Case("gymnasium/pogema:Pogema-v0", {"max_episode_steps": 60}, ("pogema==1.4.0",)),
]


# Installing -------------------------------------------------------------------------------------------------


def install(packages: set[str], site: Path) -> dict[str, str]:
    """Install packages into a folder, without what they depend on; returns the reasons of those that fail."""
    failed = {}
    for package in sorted(packages):
        marker = site / f".{package}"
        if marker.exists():
            continue
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), package]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            failed[package] = (lines or ["pip failed"])[-1].removeprefix("ERROR: ")
        else:
            marker.touch()
    return failed


# One environment --------------------------------------------------------------------------------------------


def try_out(case: Case) -> dict[str, Any]:
    """Check, train and compare one environment in this process."""
    from coterie.config import registry, schema
    from coterie.core.types import CoterieError
    from coterie.testing import check_world
    from coterie.training.build import build_world

    row: dict[str, Any] = {"name": case.name, "settings": case.settings}
    part = schema.part(registry.WORLDS, {"name": case.name} | case.settings, "world")
    try:
        world = build_world(part, 1)
        row["agents"] = {name: len(kind.agents) for name, kind in world.agent_types.items()}
        row["observation"], row["action"] = (_spaces(world, field) for field in ("observation", "action"))
        row["simultaneous"] = world.simultaneous
        row["check"] = "passes"
        check_world(lambda num_envs: build_world(part, num_envs), steps=40)
    except CoterieError as error:
        row["check"] = str(error)
        return row
    row["training"] = train(case, world)
    try:
        row |= compare(case, part)
    except CoterieError as error:
        row["same_returns"] = str(error)
    return row


def _spaces(world: Any, field: str) -> list[str]:
    from coterie.core.types import Dict

    spaces = [getattr(kind, field) for kind in world.agent_types.values()]
    return [_short(space.entries if isinstance(space, Dict) else space) for space in spaces]


def _short(space: Any) -> str:
    if isinstance(space, dict):
        return "Dict(" + ", ".join(f"{name}: {_short(part)}" for name, part in space.items()) + ")"
    inside = getattr(space, "n", None) or getattr(space, "sizes", None) or getattr(space, "shape", "")
    return f"{type(space).__name__}{inside if isinstance(inside, tuple) else f'({inside})'}"


def train(case: Case, world: Any) -> str:
    """Train every agent type with PPO for a moment: 'learns' when networks were updated and saved."""
    import coterie
    from coterie.core.types import CoterieError

    groups = {name: {"agents": list(kind.agents), "learner": "ppo"} for name, kind in world.agent_types.items()}
    settings = {"max_episode_steps": 60} | case.settings
    short = {"total_steps": 512, "num_envs": 4, "rollout_steps": 32, "evaluate_episodes": 2, "evaluate_every": 100}
    config = {
        "world": {"name": case.name} | settings,
        "groups": groups,
        "train": short | {"video": False, "tensorboard": False},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.yaml"
        path.write_text(json.dumps(config))  # JSON is YAML
        try:
            run = coterie.train(str(path), out=Path(folder) / "run", quiet=True)
        except CoterieError as error:
            return str(error)
        summary = run.summary()
    return "trains" if summary and summary["env_steps"] >= 512 else "ends early"


def compare(case: Case, part: Any) -> dict[str, Any]:
    """Play random actions in our world, and those of its first copy in a bare loop, episode by episode in turn."""
    import numpy as np

    from coterie.core import seeding
    from coterie.core.sampling import random_actions
    from coterie.training.build import build_world

    settings = replace(part.settings, native=False) if hasattr(part.settings, "native") else part.settings
    world = build_world(type(part)(part.name, settings), COPIES)
    random, timestep = np.random.default_rng(0), world.reset(0)
    env = world.inner._workers[0].batch.envs[0]  # `fresh` builds it in `reset`
    names = sorted(agent for kind in world.agent_types.values() for agent in kind.agents)
    weights = {agent: 1.0 + i for i, agent in enumerate(names)}  # sums of zero-sum games would always agree
    bare, seconds, bare_seconds, steps, episodes, equal = Bare(case, settings, weights), 0.0, 0.0, 0, 0, True
    log: list[Any] = _log_actions(env)
    bare.tensor = getattr(env, "tensor", "")
    total = 0.0
    while steps < STEPS or not episodes:
        actions = random_actions(timestep, world.agent_types, random)
        start = time.process_time()
        timestep = world.step(actions)
        seconds += time.process_time() - start
        steps += 1
        for name, kind in world.agent_types.items():
            own = [weights[agent] for agent in kind.agents]
            total += float(timestep.agent_types[name].reward[0] @ own)
        if timestep.ended[0]:
            seed = seeding.integer(0, "guest", 0, episodes) % 2**31
            if not settings.fresh:
                bare.prepare()
            start = time.process_time()
            if settings.fresh:  # our world builds a new one for every episode, too
                bare.prepare()
            returned = bare.play(seed, log)
            bare_seconds += time.process_time() - start
            equal &= abs(returned - total) <= 1e-4 * max(1.0, abs(total))
            env = world.inner._workers[0].batch.envs[0]  # a new one where `fresh` is set
            log = _log_actions(env)
            total, episodes, played = 0.0, episodes + 1, steps
        if steps >= 10 * STEPS:
            break
    if not episodes:
        return {"same_returns": f"no episode ended within {steps} steps"}
    ours = steps * COPIES / seconds
    plain = played / bare_seconds
    return {
        "same_returns": "yes" if equal else "no",
        "episodes": episodes,
        "steps_per_s": round(ours, 1),
        "bare_steps_per_s": round(plain, 1),
        "ratio": round(ours / plain, 2),
    }


def _log_actions(env: Any) -> list[Any]:
    """Log what an environment of ours is given, from its next step on."""
    log: list[Any] = []
    if type(env).__name__ == "OwnGenerators":
        env = env.inner

    def logged(step: Any, action: Any) -> Any:
        log.append(copy.deepcopy(action))
        return step(action)

    if hasattr(env, "game"):  # OpenSpiel: the state's history, chance included, is the log
        step = getattr(env, "_unlogged_step", env.step)
        env._unlogged_step = step

        def step_and_log() -> bool:
            over: bool = step()
            log[:] = env.state.history()
            return over

        env.step = step_and_log
        return log
    if hasattr(env, "_step"):  # Gymnasium: its own `reset` may call its own `step`, which is no action of ours
        env._step = functools.partial(logged, env.env.step)
        return log
    inner = env.env.env if type(env.env).__name__ == "TupleAgents" else env.env
    original = getattr(inner, "_unlogged_step", inner.step)
    inner._unlogged_step = original
    inner.step = functools.partial(logged, original)
    return log


class Bare:
    """The environment as its own package makes it, without Coterie."""

    def __init__(self, case: Case, settings: Any, weights: dict[str, float]) -> None:
        self.family, self.id = case.name.split("/", 1)
        self.settings, self.weights = settings, weights
        self.tensor = ""  # OpenSpiel: the name of what players see
        self.env: Any = None

    def prepare(self) -> None:
        """Build the environment, if need be."""
        if self.env is None or self.settings.fresh:
            self.env = self.make()

    def make(self) -> Any:
        """Build the environment."""
        import gymnasium

        if self.family == "openspiel":
            import pyspiel

            game = pyspiel.load_game(self.id, self.settings.options)
            simultaneous = game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
            return pyspiel.convert_to_turn_based(game) if simultaneous else game
        options, limit = self.settings.options, self.settings.max_episode_steps
        if self.family == "pettingzoo" and "/" not in self.id:
            module = importlib.import_module(self.id)
            return module.parallel_env(**options) if hasattr(module, "parallel_env") else module.env(**options)
        if self.family in ("gymnasium", "minigrid"):
            module, _, name = self.id.rpartition(":")
            if module:
                importlib.import_module(module)
            short = self.family == "minigrid" and not name.startswith("BabyAI-")
            name = f"MiniGrid-{name}-v0" if short else name
            more = {"max_episode_steps": limit} if limit else {}
            return gymnasium.make(name, disable_env_checker=True, **more, **options)
        package = "mpe2" if self.family == "mpe" else f"pettingzoo.{self.id.split('/')[0]}"
        module_name = self.id.split("/")[-1]
        if self.family == "mpe":
            found = [module.name for module in pkgutil.iter_modules(importlib.import_module("mpe2").__path__)]
            module_name = max(name for name in found if name.startswith(f"{module_name}_v"))
        module = importlib.import_module(f"{package}.{module_name}")
        return module.parallel_env(**options) if hasattr(module, "parallel_env") else module.env(**options)

    def play(self, seed: int, actions: list[Any]) -> float:
        """Play one episode with given actions and return all rewards, added up."""
        from coterie.core import global_random

        if self.family == "openspiel":
            return self._play_openspiel(actions)
        assert self.env is not None
        env, total = self.env, 0.0
        if self.settings.seed_globals:
            global_random.seed_global(seed)
        env.reset(seed=seed)
        if hasattr(env, "agent_iter"):
            for action in actions:
                env.last()
                env.step(action)
                total += self._weighted(env.rewards) if action is not None else 0.0
            return total
        for action in actions:
            reward = env.step(action)[1]
            if isinstance(reward, dict):
                total += self._weighted(reward)
            elif len(self.weights) > 1:
                total += self._weighted(dict(enumerate(reward)))
            else:
                total += self._scalar(reward)
        return total

    def _scalar(self, reward: Any) -> float:
        """A reward as one number: one of several is weighted."""
        import numpy as np

        return float(np.dot(reward, self.settings.scalarize) if self.settings.scalarize else reward)

    def _weighted(self, rewards: dict[Any, Any]) -> float:
        """The agents' rewards with their weights; numbered agents are called agent_0, agent_1 …"""
        names = {key: key if isinstance(key, str) else f"agent_{key}" for key in rewards}
        return sum(self.weights[names[key]] * self._scalar(reward) for key, reward in rewards.items())

    def _play_openspiel(self, history: list[int]) -> float:
        """Repeat a game's moves, chance included, and read what players would see."""
        assert self.env is not None
        state = self.env.new_initial_state()
        for action in history:
            if not state.is_chance_node():
                state.legal_actions()
                getattr(state, f"{self.tensor}_tensor")(state.current_player())
            state.apply_action(action)
        return sum(weight * reward for weight, reward in zip(self.weights.values(), state.returns(), strict=True))


# All of them ------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, default=ROOT / ".venv-worlds", help="folder for packages")
    parser.add_argument("--only", nargs="*", help="names of environments; the others keep their results")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.only or case.name in options.only]
    options.site.mkdir(parents=True, exist_ok=True)
    failed = install({package for case in cases for package in case.packages}, options.site)
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.append(str(options.site))
    warnings.simplefilter("ignore")
    importlib.import_module("coterie.api")
    own = {name: importlib.metadata.version(name) for name in ("gymnasium", "pettingzoo", "mpe2", "minigrid")}
    before = json.loads(OUT.read_text()) if options.only and OUT.exists() else {"environments": [], "commit": commit()}
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in before["environments"]}
    for case in cases:
        missing = [failed[package] for package in case.packages if package in failed]
        row = {"name": case.name, "settings": case.settings, "check": missing[0]} if missing else run(case)
        rows[case.name] = row | {"packages": [package for package in case.packages if "==" in package]}
        if commit() != before["commit"]:
            rows[case.name]["commit"] = commit()  # of this row alone
        print(row["name"], row.get("check"), row.get("training"), row.get("same_returns"), row.get("ratio"), flush=True)
        listed = [rows[case.name] for case in CASES if case.name in rows]
        found = {"command": "make worlds", "commit": before["commit"], "versions": own, "environments": listed}
        OUT.write_text(json.dumps(found, indent=1) + "\n")


def run(case: Case) -> dict[str, Any]:
    """Try one environment in a process of its own, forked so that Coterie is imported once."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_send_result, args=(case, theirs))
    child.start()
    theirs.close()
    row: dict[str, Any] = {"name": case.name, "settings": case.settings}
    try:
        return ours.recv() if ours.poll(LIMIT) else row | {"check": f"took more than {LIMIT} s"}
    except EOFError:
        return row | {"check": "its process ended without a result"}
    finally:
        child.kill()
        child.join()


def _send_result(case: Case, pipe: Any) -> None:
    try:
        pipe.send(try_out(case))
    except Exception as error:  # whatever a package raises belongs into the table
        pipe.send({"name": case.name, "settings": case.settings, "check": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
