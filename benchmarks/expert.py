"""What demonstrations save: DoorKey by PPO alone, from another task's policy, and from clones of 5 and 20 episodes.

    python benchmarks/expert.py --size 5 --seeds 5 --runs runs/expert

Every arm trains `doorkey-expert-ppo`. `scratch` starts with random weights, `scratch-tuned` too, with the best settings
of PPO from random weights that are known, `transfer` with the weights of PPO on a grid of another size, `expert-N` and
`lm-N` with a clone of N episodes of the scripted expert, or of those that the embedded language model planned. Frames
count demonstrations, and for `transfer` not the other task's. Policies that are handed over are evaluated every 512
frames, `scratch` and `scratch-tuned` every 1,024. `lowest_drawn` is the lowest success of the episodes that ended in
one iteration of training, where actions are drawn. Settings were chosen on seeds 100 to 104. Writes
docs/results/expert-doorkey-SIZE.json and .png (curves with the range of the seeds, frames to 90%, where each arm goes),
and one video of each arm next to the runs. What is already trained is kept, and refused where it was trained with
other settings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from interleave import commit
from kept_runs import is_kept

import coterie
from coterie.algorithms.imitation import demonstrations
from coterie.config import schema
from coterie.runs.run import Run
from coterie.studies import figures
from coterie.studies.demonstrate.record import DemonstrationSpec, record
from coterie.studies.statistics import Estimate
from coterie.training.build import build_render_world, build_world
from coterie.training.clone import cloning_overrides
from coterie.training.loop import evaluation_seed
from coterie.training.runner import Runner, play_episodes
from coterie.training.table import load
from coterie.video.films import write_video

EXPERIMENT = "doorkey-expert-ppo"
PLANNER = "planner:lm=embedded"
PLAIN = ["train.video=false", "train.tensorboard=false"]
DOORKEY = "coterie.worlds.doorkey.augmentation"
CLONE = [  # few decisions are learned by heart within seconds: what is changed at random keeps the policy general
    f"groups.agent.learner.augmentations=[{DOORKEY}:mirror, {DOORKEY}:hide_window]",
    "groups.agent.learner.noise=0.2",
    "groups.agent.learner.weight_decay=0.3",
    "groups.agent.learner.validation=0",
    "train.total_steps=98304",
    "train.evaluate_every=8",
]
OFTEN = ["train.rollout_steps=32", "train.evaluate_every=1"]  # evaluated every 512 frames
STEADY = ("gamma=0.98", "entropy_coefficient=0", "learning_rate=5e-4", "normalize_advantages=false")
LEARNER = {5: (*STEADY, "epochs=8"), 8: (*STEADY, "minibatches=4")}  # of PPO after cloning, by size of the grid
TUNED = {  # of PPO from random weights
    5: ("gamma=0.98", "entropy_coefficient=0.01", "epochs=8"),
    8: ("gamma=0.98", "entropy_coefficient=0.01", "learning_rate=2e-3", "minibatches=4"),
}
HAND_OVER = (  # how a policy goes on under PPO, found by `hand_over.py` on seeds 100 to 102; RUN: the policy's run
    "learner.hand_over.warm_up=1",
    "advisor={name: policy, policy: RUN, use: {mode: kl, strength: 0.3, frames: 4000}}",
)
SCRATCH = ("scratch", "scratch-tuned")
WITHOUT = (*SCRATCH, "transfer")  # arms without demonstrations
SOLVED = 0.9  # greedy success


def demonstrate(name: str, size: int, folder: Path) -> Path:
    """Demonstrations of an arm, such as `lm-20`: the first episodes are the same in all of them."""
    who, _, count = name.partition("-")
    path = folder / f"demonstrations-{name}"
    policy = {"expert": "expert", "lm": PLANNER}[who]
    record(DemonstrationSpec(EXPERIMENT, policy, int(count)), path, [f"world.size={size}"])
    return path


def go_on(path: Path, way: tuple[str, ...] = HAND_OVER) -> list[str]:
    """The settings with which PPO goes on with a run's policy."""
    words = [word.replace("RUN", str(path.absolute())) for word in way]
    return [f"groups.agent.policy.run={path.absolute()}", *(f"groups.agent.{word}" for word in words)]


def learner_words(size: int, settings: Mapping[int, tuple[str, ...]] = LEARNER) -> list[str]:
    """The settings of PPO, by default those after the hand-over."""
    return [f"groups.agent.learner.{word}" for word in settings.get(size, settings[5])]


def train_kept(words: list[str], out: Path) -> Run:
    """The run with these settings, trained if need be."""
    if not is_kept(out, schema.load(EXPERIMENT, words)):
        coterie.train(EXPERIMENT, words, out, quiet=True)
    return Run.open(out)


def clone_kept(arm: str, seed: int, size: int, folder: Path, policy: Sequence[str] = ()) -> tuple[Path, int]:
    """The clone of an arm's demonstrations, trained if need be, and the frames of its demonstrations.

    `policy`: settings by which its policy differs from the experiment's.
    """
    shown = demonstrate(arm, size, folder)
    words, clone = [f"world.size={size}", f"seed={seed}", *PLAIN, *CLONE], folder / f"{arm}-clone" / f"seed={seed}"
    words += policy
    if not is_kept(clone, schema.load(EXPERIMENT, [*cloning_overrides(EXPERIMENT, [shown]), *words])):
        coterie.clone(EXPERIMENT, [shown], words, clone, quiet=True)
    return clone, demonstrations.load(shown).frames


def other_kept(seed: int, size: int, steps: int, folder: Path) -> Path:
    """The policy of another task, trained if need be."""
    other = folder / "other" / f"seed={seed}"
    words = [f"world.size={5 if size > 5 else 6}", f"seed={seed}", *PLAIN, f"train.total_steps={steps}"]
    return train_kept(words, other).path


def train(arm: str, seed: int, size: int, steps: int, other: int, folder: Path) -> tuple[Run, int]:
    """The run of one arm and seed, trained if need be, and the frames of its demonstrations.

    `steps` are those of PPO in this arm, `other` those on another task where the arm begins with its policy.
    """
    words, frames = [f"world.size={size}", f"seed={seed}", *PLAIN], 0
    if arm == "transfer":
        words += [*go_on(other_kept(seed, size, other, folder)), *learner_words(size), *OFTEN]
    elif arm not in SCRATCH:
        clone, frames = clone_kept(arm, seed, size, folder)
        words += [*go_on(clone), *learner_words(size), *OFTEN]
    else:
        words += [*(learner_words(size, TUNED) if arm == "scratch-tuned" else []), "train.evaluate_every=1"]
    return train_kept([*words, f"train.total_steps={steps}"], folder / arm / f"seed={seed}"), frames


def curve(run: Run, frames: int) -> tuple[list[int], list[float]]:
    """Frames, demonstrations included, and greedy success on validation episodes."""
    found = [(r["env_steps"] + frames, r["eval/success_rate"]) for r in run.metrics() if "eval/success_rate" in r]
    return [step for step, _ in found], [value for _, value in found]


def solved_at(steps: list[int], values: list[float]) -> int | None:
    """The frames after which success is at least SOLVED for the first time; None: never."""
    return next((step for step, value in zip(steps, values, strict=True) if value >= SOLVED), None)


def drawn_at(run: Run, frames: int) -> int | None:
    """The same for play with actions drawn: in 100 held-out episodes at step 0, else in the latest 100 of training."""
    drawn = (run.summary() or {})["step_0"].get("drawn", {})
    if drawn.get("success_rate", 0.0) >= SOLVED:
        return frames
    latest: list[tuple[float, float]] = []  # episodes of an iteration, and how many of them succeeded
    for record_ in run.metrics():
        if record_.get("episodes"):
            latest.append((record_["episodes"], record_["episodes"] * record_["success_rate"]))
            while sum(count for count, _ in latest[1:]) >= 100:
                latest.pop(0)
            episodes, won = np.sum(latest, axis=0)
            if episodes >= 100 and won >= SOLVED * episodes:
                return frames + int(record_["env_steps"])
    return None


def visits(run: Run, size: int) -> np.ndarray:
    """How often each cell is visited in 100 episodes of greedy play, as a share of all steps."""
    table, counts = load(run.path), np.zeros((size, size))
    world = build_world(table.config.world, 100)
    runner = Runner(world, [group.actor for group in table.groups], evaluation_seed(0), greedy=True)
    open_ = np.ones(100, bool)
    for _ in play_episodes(runner):
        open_ &= ~runner.timestep.ended
        np.add.at(counts, (world.state.agent[open_, 1], world.state.agent[open_, 0]), 1)
        if not open_.any():
            break
    return counts / max(counts.sum(), 1)


def draw(found: dict[str, Any]) -> bytes:
    """Curves of arms with and without demonstrations, with the range of the seeds, and the frames to 90%; below them
    where each arm goes."""
    from matplotlib.figure import Figure

    arms = found["arms"]
    colours = {arm: figures.colour(number) for number, arm in enumerate(arms)}
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=(1.7, 1))
    shown = {True: "with demonstrations: greedy success", False: "without: greedy success"}
    panels = {title: [arm for arm in arms if (arm in WITHOUT) is not by] for by, title in shown.items()}
    panels = {title: names for title, names in panels.items() if names}
    above = grid[0].subgridspec(1, len(panels) + 1)
    for place, (title, names) in enumerate(panels.items()):
        curves = figure.add_subplot(above[place])
        for arm in names:
            one = arms[arm]
            steps = np.array(one["curves"][0]["frames"])
            values = np.array([curve["success"][: len(steps)] for curve in one["curves"]])
            line = Estimate(np.median(values, axis=0), values.min(axis=0), values.max(axis=0))
            figures.draw_series(curves, figures.Series(arm, colours[arm], steps, line), band=True)
        figures.draw_references(curves, [figures.Reference(f"{SOLVED:.0%}", SOLVED, threshold=True)])
        figures.label_panel(curves, title, figures.STEPS, "share of episodes")
        curves.set_ylim(-0.03, 1.03)
        figures.put_legend(curves)
    reached = figure.add_subplot(above[-1])
    runs = {
        arm: [
            (row["frames_to_90"] or curve["frames"][-1], row["frames_to_90"] is not None)
            for row, curve in zip(one["seeds"], one["curves"], strict=True)
        ]
        for arm, one in arms.items()
    }
    figures.draw_reaching(reached, runs, colours)
    figures.label_panel(reached, f"frames to {SOLVED:.0%}", figures.STEPS, "")
    maps = grid[1].subgridspec(1, max(len(arms), 4))
    for number, (arm, one) in enumerate(arms.items()):
        axes = figure.add_subplot(maps[number])
        axes.imshow(np.array(one["visits"]), cmap=figures.HEAT, vmin=0)
        axes.set_title(arm, fontsize=9, color=figures.TEXT)
        axes.set_axis_off()
    words = (
        "Lines: median of the seeds; bands: their range. Dots: seeds; open: not reached by the last frame. "
        "Squares: cells that greedy play visits, the brighter the more often."
    )
    figure.supxlabel(words, fontsize=8, color=figures.TEXT)
    return figures.as_png(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=400)
    parser.add_argument(
        "--steps", type=int, default=100_000, help="frames of PPO from scratch, there and on another task"
    )
    parser.add_argument("--after", type=int, default=12_288, help="frames of PPO after a clone or another task")
    every = [*SCRATCH, "transfer", "expert-5", "expert-20", "lm-5", "lm-20"]
    parser.add_argument("--arms", nargs="+", default=every)
    parser.add_argument("--runs", type=Path, default=Path("runs/expert"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"), help="folder of the results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)  # before hours of training
    folder, arms = options.runs / f"size-{options.size}", dict[str, Any]()
    for arm in options.arms:
        steps = options.steps if arm in SCRATCH else options.after
        rows, curves = [], []
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            run, frames = train(arm, seed, options.size, steps, options.steps, folder)
            summary = run.summary() or {}
            at, values = curve(run, frames)
            curves.append({"frames": at, "success": values})
            rows.append(
                {
                    "seed": seed,
                    "demonstration_frames": frames,
                    "step_0": summary["step_0"]["success_rate"],
                    "step_0_drawn": summary["step_0"].get("drawn", {}).get("success_rate"),
                    "greedy": summary["evaluation"]["success_rate"],
                    "last": summary["last"]["success_rate"],
                    "lowest": min(values[1:]),  # after step 0
                    "lowest_drawn": min(r["success_rate"] for r in run.metrics() if "success_rate" in r),
                    "frames_to_90": solved_at(at, values),
                    "frames_to_90_drawn": drawn_at(run, frames),
                }
            )
            print(arm, json.dumps(rows[-1]), flush=True)
        where = [[round(float(share), 4) for share in row] for row in visits(run, options.size)]
        arms[arm] = {"seeds": rows, "curves": curves, "visits": where}
        table = load(run.path)
        world = build_render_world(table.config.world)
        write_video(world, [g.actor for g in table.groups], evaluation_seed(0), [folder / f"{arm}.gif"])
    name = f"expert-doorkey-{options.size}"
    result = {"command": " ".join(["python", *sys.argv]), "commit": commit(), "arms": arms}
    (options.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / f"{name}.png").write_bytes(draw(result))
    print(f"{'arm':12} {'step 0':>7} {'drawn':>7} {'lowest':>7} {'greedy':>7} {'frames to 90%, median (range)':>32}")
    for arm, found in arms.items():
        rows = found["seeds"]
        reached = sorted(10**9 if row["frames_to_90"] is None else row["frames_to_90"] for row in rows)
        shown = [f"{value:,}" if value < 10**9 else "never" for value in (statistics.median_low(reached), *reached)]
        keys = ("step_0", "step_0_drawn", "lowest", "greedy")
        scores = [statistics.mean(row[key] or 0.0 for row in rows) for key in keys]
        print(arm.ljust(12), *(f"{score:7.0%}" for score in scores), f"{shown[0]:>12} ({shown[1]} to {shown[-1]})")


if __name__ == "__main__":
    main()
