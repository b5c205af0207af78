"""Compare the numbers of two versions of the code: every shipped experiment, trained briefly by both, bit for bit.

    python benchmarks/same_numbers.py --base COMMIT --only cartpole-ppo gridworld-lm

Trains each experiment for a few iterations with the code of a commit (in a temporary git worktree) and with the
working tree, then compares checkpoints (weights, learner state, replay), metrics, summaries and the output of
`coterie eval --json`. Settings, metrics and state may have new names: list them in RENAMED. Only the command line
and the files of a run are used, so modules may move. Results of a commit are cached; the exit code is 1 when
anything differs. Videos, reports and TensorBoard files are not compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parent.parent
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")

# Old names -> new names. An entry replaces those components anywhere in a path ("/" and "." both separate), where the
# old path exists in the base and not in the working tree. None as a new name: the base's entry was removed on purpose.
RENAMED: dict[str, dict[str, str | None]] = {
    "settings": {},  # of experiments
    "values": {},  # of settings, and strings in results
    "options": {},  # of the command line
    "experiments": {},  # names of the shipped ones
    "metrics": {},  # in metrics.jsonl, summary.json and `eval --json`
    "state": {},  # in checkpoints
}
ADDED: tuple[str, ...] = ()  # components of paths that only the working tree has, on purpose
TIMINGS = ("wall_s", "steps_per_s", "seconds")  # last components of paths that hold measured times

# Overrides that make a run short; * stands for one component. Those without effect on an experiment are left out.
SMALL = {
    "train.threads": "1",
    "train.evaluate_every": "2",
    "train.checkpoint_every": "1",
    "train.keep_checkpoints": "100",
    "train.video": "false",
    "train.tensorboard": "false",
    "groups.*.learner.replay.learning_starts": "64",
    "groups.*.learner.replay.size": "600",  # less than is played, so that old rows are written over
}
WORLDS = {"gridworld": {"world.max_steps": "24"}, "minigrid": {"world.max_episode_steps": "24"}}  # so that episodes end


@dataclass(frozen=True)
class Size:
    """How much is played."""

    copies: int = 8
    steps: int = 32
    iterations: int = 4
    episodes: int = 4  # per evaluation


SIZES = {
    "auction": Size(copies=64, steps=8),
    "cartpole-lm-head": Size(copies=4, steps=8, iterations=3, episodes=2),
    "doorkey5-shaped": Size(copies=4, steps=8, iterations=3, episodes=2),
    "gridworld-advised": Size(copies=4, steps=8, episodes=2),
    "gridworld-lm": Size(copies=4, steps=8, iterations=3, episodes=2),
    "gridworld-lm-lora": Size(copies=2, steps=6, iterations=2, episodes=2),
    "lavagap-constrained": Size(copies=4, steps=8, iterations=3, episodes=2),
    "more/instructed": Size(copies=2, steps=6, iterations=2, episodes=2),
}
RESUMED = ("cartpole-dqn", "cartpole-ppo", "spread-maddpg", "gridworld-advised")  # two iterations more
EVALUATED = ("cartpole-ppo", "tag-maddpg", "gridworld-lm", "lunarlander-dqn")  # greedy and stochastic
MORE = {  # what no shipped experiment covers: experiment and overrides, in the names of the base
    "more/ppo-torch": ("cartpole-ppo", ["groups.agent.policy.compiled=false"]),
    "more/ppo-memory": ("gridworld-meet", ["groups.team.policy.memory=8"]),
    "more/ppo-individual": ("spread-ippo", ["groups.team.parameters=individual"]),
    "more/ppo-team": ("gridworld-cooperative", ["groups.team.preference=team"]),
    "more/ppo-workers": ("spread-mappo", ["train.shards=2", "train.workers=2"]),
    "more/ppo-tictactoe": ("gridworld-competitive", ["world=tictactoe", "groups.rivals.agents=[player_0,player_1]"]),
    "more/ppo-mpe2": ("spread-ippo", ["world=mpe/simple_spread_v3"]),
    "more/dqn-individual": ("gridworld-iql", ["groups.team.parameters=individual"]),
    "more/maddpg-individual": ("spread-maddpg", ["groups.team.parameters=individual"]),
    "more/maddpg-twin": ("tag-maddpg", ["groups.prey.learner.critic.twin=true"]),
    "more/maddpg-cvar": ("auction-cpt", ["groups.bidders.preference=cvar"]),
    "more/maddpg-mean-variance": ("auction-neutral", ["groups.bidders.preference=mean_variance"]),
    "more/ppo-episodic": (
        "cartpole-ppo",
        ["groups.agent.preference.name=cpt", "groups.agent.preference.scope=episodic", "groups.agent.learner.gamma=1"],
    ),
    "more/advised-expert": ("gridworld-meet", ["groups.team.advisor=expert"]),
    "more/preferred": ("doorkey5-ppo", ["groups.agent.preference=pairwise_lm"]),
    "more/instructed": ("gridworld-instructed", ["groups.team.preference=instruction_lm"]),
}

# Runs commands in one process with the code of one tree; prints [exit code, stdout, stderr] of each.
CHILD = """
import contextlib, io, json, sys, pathlib
source, commands = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
import coterie
assert pathlib.Path(coterie.__file__).resolve().is_relative_to(source.resolve()), f"{coterie.__file__}: wrong tree"
from coterie.cli import main
done = []
for words in commands:
    sys.argv, out, err, code = ["coterie", *words], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as left:
            code = left.code or 0
    done.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(done))
"""

Leaves = dict[str, Any]  # path -> array or JSON value
Settings = dict[str, str]  # dotted path -> value of one experiment, every default written out


class Failed(Exception):
    """A command of one of the trees failed."""


# Names ------------------------------------------------------------------------------------------------


def spellings(path: str, table: Mapping[str, str | None], depth: int = 4) -> list[str | None]:
    """The path and what renaming makes of it, fewest changes first; None: removed on purpose."""
    found: list[str | None] = [path]
    latest: list[str] = [path]
    for _ in range(depth):
        made = [new for path in latest for new in renamed_once(path, table)]
        found += [new for new in dict.fromkeys(made) if new not in found]
        latest = [new for new in dict.fromkeys(made) if new is not None]
    return found


def renamed_once(path: str, table: Mapping[str, str | None]) -> Iterator[str | None]:
    """Every path that one entry of the table makes of this one, at one place."""
    parts = path.split("/")
    for old, new in table.items():
        before = old.replace(".", "/").split("/")
        after = None if new is None else [part for part in new.replace(".", "/").split("/") if part]
        for start in range(len(parts) - len(before) + 1):
            if parts[start : start + len(before)] == before:
                yield None if after is None else "/".join(parts[:start] + after + parts[start + len(before) :])


def spelled_overrides(patterns: Mapping[str, str], known: Settings) -> list[str]:
    """The overrides as `key=value` in the names that a tree knows."""
    words = []
    for pattern, value in patterns.items():
        possible = [path for path in spellings(pattern.replace(".", "/"), RENAMED["settings"]) if path is not None]
        keys = [key for key in known if any(matches(key.split("."), path.split("/")) for path in possible)]
        words += [f"{key}={value}" for key in keys]
    return words


def matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path fits a pattern in which * stands for one component."""
    return len(parts) == len(pattern) and all(q in ("*", p) for p, q in zip(parts, pattern))


def renamed_words(words: Sequence[str]) -> list[str]:
    """`key=value` words with every renaming applied."""
    made = []
    for word in words:
        key, _, value = word.partition("=")
        new = spellings(key.replace(".", "/"), RENAMED["settings"])[-1] or key
        made.append(f"{new.replace('/', '.')}={RENAMED['values'].get(value) or value}")
    return made


# Cases ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One experiment and what is done with it."""

    name: str
    experiment: str
    words: tuple[str, ...] = ()  # overrides of the experiment, in the names of the base

    @property
    def size(self) -> Size:
        auction = SIZES["auction"] if self.experiment.startswith("auction") else Size()
        return SIZES.get(self.name) or SIZES.get(self.experiment, auction)

    def overrides(self, settings: Settings, iterations: int) -> dict[str, str]:
        """What makes the run short, in the names of the base."""
        size = self.size
        played = {
            "train.total_steps": str(size.copies * size.steps * iterations),
            "train.num_envs": str(size.copies),
            "train.rollout_steps": str(size.steps),
            "train.evaluate_episodes": str(size.episodes),
        }
        return played | SMALL | WORLDS.get(settings["world.name"].partition("/")[0], {})

    def key(self) -> str:
        """Names the case's results in a cache: other overrides or library versions make another key."""
        libraries = [f"{name} {version(name)}" for name in ("numpy", "numba", "scipy", "torch", "transformers")]
        told: list[Any] = [self.name, self.experiment, self.words, repr(self.size), SMALL, WORLDS]
        told += [self.name in RESUMED, self.name in EVALUATED, platform.python_version(), libraries]
        return f"{self.name.replace('/', '+')}-{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:8]}"


@dataclass
class Tree:
    """One version of the code."""

    source: Path  # its src folder
    settings: dict[str, Settings] = field(default_factory=dict)  # of every case that it has
    words: dict[str, list[str]] = field(default_factory=dict)  # each case's own overrides, as this tree spells them
    options: list[str] = field(default_factory=list)  # of `eval`, as this tree spells them

    def call(self, commands: Sequence[Sequence[str]], folder: Path) -> list[tuple[int, str, str]]:
        """Run commands in one process."""
        environment = os.environ | ONE_THREAD | {"PYTHONPATH": str(self.source), "NO_COLOR": "1", "COLUMNS": "200"}
        words = [sys.executable, "-c", CHILD, str(self.source), json.dumps(commands)]
        done = subprocess.run(words, env=environment, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"{' '.join(commands[0])}\n{done.stderr[-2000:]}")
        return [(code, out, err) for code, out, err in json.loads(done.stdout.splitlines()[-1])]

    def one(self, command: Sequence[str], folder: Path) -> str:
        """Run one command that must succeed; returns what it printed."""
        code, out, err = self.call([command], folder)[0]
        if code:
            raise Failed(f"coterie {' '.join(command)}\n{err[-2000:]}")
        return out

    def experiments(self) -> list[str]:
        """Names of the shipped experiments."""
        names = []
        for path in sorted((self.source / "coterie").rglob("*.yaml")):
            folders = path.relative_to(self.source).with_suffix("").parts
            if "experiments" in folders:
                names.append("/".join(folders[folders.index("experiments") + 1 :]))
        return names

    def learn_names(self, cases: Sequence[Case]) -> None:
        """Ask which settings and options there are; each case in the old names, then in the new ones."""
        shipped, tries = self.experiments(), []
        for case in cases:
            for name in spellings(case.experiment, RENAMED["experiments"]):
                if name in shipped:
                    tries += [(case.name, name, words) for words in (list(case.words), renamed_words(case.words))]
        commands = [["config", "show", name, *words] for _, name, words in tries]
        with tempfile.TemporaryDirectory() as folder:
            *shown, usage = self.call([*commands, ["eval", "--help"]], Path(folder))
        for (case_name, name, words), (code, out, _) in zip(tries, shown):
            if not code and case_name not in self.settings:
                self.settings[case_name] = dict(flat_settings(yaml.safe_load(out)))
                self.words[case_name] = [name, *words]
        options = (*RENAMED["options"], *RENAMED["options"].values())
        self.options = [word for word in options if word is not None and word in usage[1]]


def flat_settings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Settings by dotted path."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from flat_settings(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


# Running ----------------------------------------------------------------------------------------------


def play(tree: Tree, case: Case, folder: Path) -> None:
    """Everything that is done with a case; what it leaves lies in a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    started, known = time.perf_counter(), tree.settings[case.name]
    iterations = case.size.iterations
    overrides = spelled_overrides(case.overrides(known, iterations), known)
    tree.one(["train", *tree.words[case.name], *overrides, "--out", "run", "--quiet"], folder)
    if case.name in RESUMED:
        longer = case.overrides(known, iterations + 2)["train.total_steps"]
        tree.one(["resume", "run", *spelled_overrides({"train.total_steps": longer}, known), "--quiet"], folder)
    if case.name in EVALUATED:
        for name, options in (("greedy", []), ("stochastic", tree.options[:1])):
            printed = tree.one(["eval", "run", "--episodes", "4", "--json", *options], folder)
            (folder / f"eval-{name}.json").write_text(printed)
    learners = [group for group in groups(known) if has_learner(known, group)]
    done = {"seconds": time.perf_counter() - started, "settings": known, "overrides": overrides, "learners": learners}
    (folder / "done.json").write_text(json.dumps(done))


def groups(settings: Settings) -> list[str]:
    """Names of an experiment's groups."""
    return list(dict.fromkeys(path.split(".")[1] for path in settings if path.startswith("groups.")))


def has_learner(settings: Settings, group: str) -> bool:
    """Whether a group learns."""
    return f"groups.{group}.learner.name" in settings


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The src folder of a commit, in a worktree that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="same-numbers-") as place:
        tree = Path(place) / "tree"
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree / "src"
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*words: str) -> str:
    """The output of git."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


# Reading ----------------------------------------------------------------------------------------------


def read_results(folder: Path) -> dict[str, Leaves]:
    """All numbers that a case left, by the section of RENAMED that applies to them."""
    run, metrics, state = folder / "run", Leaves(), Leaves()
    for number, line in enumerate((run / "metrics.jsonl").read_text().splitlines()):
        metrics |= dict(leaves(json.loads(line), f"metrics/{number}"))
    for file in (run / "summary.json", *sorted(folder.glob("eval-*.json"))):
        metrics |= dict(leaves(json.loads(file.read_text()), file.stem))
    for checkpoint in sorted((run / "checkpoints").iterdir()):
        arrays = load_file(checkpoint / "arrays.safetensors")
        state |= dict(leaves(json.loads((checkpoint / "state.json").read_text()), checkpoint.name, arrays))
    return {section: without_timings(found) for section, found in (("metrics", metrics), ("state", state))}


def leaves(value: Any, path: str, arrays: Mapping[str, Any] | None = None) -> Iterator[tuple[str, Any]]:
    """A nested value as paths and what lies there; marks of arrays are replaced by the arrays."""
    if isinstance(value, dict) and "$array" in value and arrays is not None:
        yield path, arrays[value["$array"]].reshape(value["shape"])
    elif isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, f"{path}/{str(key).replace('.', '/')}", arrays)
    elif not isinstance(value, dict | list):  # an empty state has nothing to compare
        yield path, value


def without_timings(found: Leaves) -> Leaves:
    """All that does not depend on the machine's speed."""
    return {path: value for path, value in found.items() if path.rpartition("/")[2] not in TIMINGS}


# Comparing --------------------------------------------------------------------------------------------


def compare(base: Leaves, new: Leaves, table: Mapping[str, str | None]) -> list[str]:
    """Lines that say what differs; none when all is the same."""
    taken, missing, unequal = set(), [], []
    for path, value in base.items():
        options = spellings(path, table) if path not in new else [path]
        there = next((option for option in options if option in new and (option == path or option not in base)), None)
        if there is not None:
            taken.add(there)
            unequal += [f"{there}: {told}" for told in difference(value, new[there])]
        elif None not in options:
            missing.append(path)
    extra = [path for path in new if path not in taken and not set(path.split("/")) & set(ADDED)]
    return (
        listed("only in the base", missing)
        + listed("only in the working tree", extra)
        + listed(f"different ({len(unequal)} of {len(base)})", unequal)
    )


def listed(title: str, lines: Sequence[str], most: int = 6) -> list[str]:
    """The first few lines under a title."""
    more = [f"    … and {len(lines) - most} more"] if len(lines) > most else []
    return [f"  {title}:", *(f"    {line}" for line in lines[:most]), *more] if lines else []


def difference(base: Any, new: Any) -> list[str]:
    """The difference of two values, bit for bit: no line, or one."""
    if isinstance(base, np.ndarray) and isinstance(new, np.ndarray):
        if (base.dtype, base.shape) != (new.dtype, new.shape):
            return [f"{base.dtype}{list(base.shape)} became {new.dtype}{list(new.shape)}"]
        if base.tobytes() == new.tobytes():
            return []
        apart = np.abs(base.astype(np.float64) - new.astype(np.float64))
        return [f"{np.count_nonzero(base != new)} of {base.size} numbers, by at most {np.nanmax(apart):.3g}"]
    if isinstance(base, np.ndarray) or isinstance(new, np.ndarray):
        return ["an array on one side only"]
    if json.dumps(base) == json.dumps(new) or (isinstance(base, str) and RENAMED["values"].get(base) == new):
        return []
    return [f"{json.dumps(base)} became {json.dumps(new)}"]


def idle_groups(state: Leaves, learners: Sequence[str]) -> list[str]:
    """Groups with a learner whose weights did not change from the first checkpoint to the last."""
    steps = sorted({path.split("/")[0] for path in state if path.startswith("step-")})
    names = spellings("policies", RENAMED["state"])
    idle = []
    for group in learners:
        heads = [f"{name}/{group}/" for name in names]
        first, last = (weights(state, step, heads) for step in (steps[0], steps[-1]))
        if not any(difference(value, last[path]) for path, value in first.items()):
            idle.append(group)
    return idle


def weights(state: Leaves, step: str, heads: Sequence[str]) -> Leaves:
    """The arrays of a group's policy in one checkpoint, without its observation statistics."""
    found = {path.removeprefix(f"{step}/"): value for path, value in state.items() if path.startswith(f"{step}/")}
    return {
        path: value
        for path, value in found.items()
        if path.startswith(tuple(heads)) and isinstance(value, np.ndarray) and "normali" not in path
    }


def judge(base: Path, new: Path, with_settings: bool) -> tuple[int, list[str]]:
    """How many values were compared, and what differs between two folders of results."""
    told = [json.loads((folder / "done.json").read_text()) for folder in (base, new)]
    before, after = read_results(base), read_results(new)
    lines = [line for section in before for line in compare(before[section], after[section], RENAMED[section])]
    if len(told[0]["overrides"]) != len(told[1]["overrides"]):
        lines += [f"  overrides: {' '.join(told[0]['overrides'])} became {' '.join(told[1]['overrides'])}"]
    for group in idle_groups(before["state"], told[0]["learners"]):
        lines.append(f"  group '{group}' has a learner, but its weights did not change: make the run longer")
    if with_settings:
        old, now = ({key.replace(".", "/"): value for key, value in side["settings"].items()} for side in told)
        lines += compare(old, now, RENAMED["settings"])
    return sum(len(found) for found in before.values()), lines


# Command ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """Two trees, and where their results go."""

    base: Tree
    new: Tree
    cache: Path  # of the base's commit
    now: Path  # of the working tree
    with_settings: bool

    def run(self, case: Case) -> tuple[bool, str]:
        """Train a case with both trees; returns whether the numbers are the same, and a row to print."""
        before, after = self.cache / case.key(), self.now / case.key()
        try:
            if not (before / "done.json").exists():
                play(self.base, case, before)
            if case.name not in self.new.settings:
                raise Failed(f"no such experiment or settings in the working tree: {case.experiment} {case.words}")
            play(self.new, case, after)
            count, lines = judge(before, after, self.with_settings)
        except Failed as error:
            return False, f"{case.name:32} FAILED\n  {error}"
        seconds = [json.loads((folder / "done.json").read_text())["seconds"] for folder in (before, after)]
        verdict = "DIFFERENT" if lines else "same"
        row = f"{case.name:32} {seconds[0]:6.1f} s {seconds[1]:6.1f} s  {verdict:9} {count:6,} values"
        if not lines:
            shutil.rmtree(after)
        return not lines, "\n".join([row, *lines])


def find_cases(base: Sequence[str], new: Sequence[str], only: Sequence[str]) -> list[Case]:
    """Every experiment of either tree and the further ones, the slowest first."""
    renamed = {option for name in base for option in spellings(name, RENAMED["experiments"])}
    names = [*base, *(name for name in new if name not in renamed)]
    cases = [Case(name, name) for name in names]
    cases += [Case(name, experiment, tuple(words)) for name, (experiment, words) in MORE.items()]
    unknown = set(only) - {case.name for case in cases}
    if unknown:
        raise SystemExit(f"no such experiment: {', '.join(sorted(unknown))}")
    chosen = [case for case in cases if not only or case.name in only]
    return sorted(chosen, key=lambda case: case.experiment not in SIZES and case.name not in RESUMED)


@contextmanager
def base_tree(commit: str, cache: Path, only: Sequence[str]) -> Iterator[tuple[Tree, list[Case]]]:
    """The base and the cases; it is checked out only when results of it are missing."""
    listing = cache / "experiments.json"
    new = Tree(ROOT / "src").experiments()
    if listing.exists():
        cases = find_cases(json.loads(listing.read_text()), new, only)
        if all((cache / case.key() / "done.json").exists() for case in cases):
            yield Tree(Path()), cases
            return
    with checked_out(commit) as source:
        tree = Tree(source)
        cases = find_cases(tree.experiments(), new, only)
        tree.learn_names(cases)
        absent = [case for case in cases if case.name not in tree.settings]
        refused = [case.name for case in absent if case.experiment in tree.experiments()]
        if refused:
            raise SystemExit(f"the base does not accept the overrides of {', '.join(refused)}")
        if absent:
            print(f"left out, since the base does not have them: {', '.join(case.name for case in absent)}")
        cache.mkdir(parents=True, exist_ok=True)
        listing.write_text(json.dumps(tree.experiments()))
        yield tree, [case for case in cases if case.name in tree.settings]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the numbers of the working tree with those of a commit.")
    parser.add_argument("--base", required=True, metavar="COMMIT", help="whose numbers are to be kept")
    parser.add_argument("--only", nargs="+", default=[], metavar="EXPERIMENT", help="compare these alone")
    parser.add_argument("--settings", action="store_true", help="also compare every resolved setting")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, one thread each")
    parser.add_argument("--cache", default=str(ROOT / ".cache" / "same-numbers"), help="where results are kept")
    options = parser.parse_args()
    commit, folder = git("rev-parse", f"{options.base}^{{commit}}"), Path(options.cache).absolute()
    started, same = time.perf_counter(), []
    with base_tree(commit, folder / commit, options.only) as (base, cases), ThreadPoolExecutor(options.jobs) as pool:
        new = Tree(ROOT / "src")
        new.learn_names(cases)
        comparison = Comparison(base, new, folder / commit, folder / "working-tree", options.settings)
        print(f"{'experiment':32} {'base':>8} {'now':>8}", flush=True)
        for done in as_completed([pool.submit(comparison.run, case) for case in cases]):
            fine, row = done.result()
            same.append(fine)
            print(row, flush=True)
    print(f"{sum(same)} of {len(same)} the same, {time.perf_counter() - started:.0f} s")
    sys.exit(not all(same))


if __name__ == "__main__":
    main()
