"""The training loop: play, learn, record, evaluate, save.

An *iteration* plays `rollout_steps` steps of every environment and lets each group learn once. A *record* is one line
of metrics.jsonl. *Validation* seeds choose the best checkpoint, *evaluation* seeds score it.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config.schema import Config, ConfigError
from coterie.core import seeding
from coterie.core.group import Actor, Group, HasTargetPolicy
from coterie.core.types import CoterieError, Joint, State, as_metrics, merge_counters
from coterie.core.world import HasExpert
from coterie.nn.threads import fixed_threads
from coterie.policies.scripted import ExpertPolicy, ExpertSettings, RandomPolicy, RandomSettings
from coterie.training import workers
from coterie.training.build import build_groups, build_render_world, build_world, probe_learners
from coterie.training.evaluate import Result, evaluate, evaluation_envs
from coterie.training.language_models import count_unanswered, keep_answers
from coterie.training.metrics import Progress, Recorder
from coterie.training.run import Run, write_text
from coterie.training.runner import Episodes
from coterie.training.video import warn_undrawable

RECENT = 100  # episodes in the moving average

Watch = Callable[[int, float], bool]  # (env_steps, validation score) -> whether the run may end here
Report = Callable[[list[Run], Path], Any]  # writes a page for a finished run: `studies.report.write_report`


class Training:
    """A run in progress: everything that a checkpoint holds, and how to advance it."""

    def __init__(self, config: Config, run: Run) -> None:
        self.config, self.run = keep_answers(config, run.path), run
        config, settings = self.config, config.train
        self.eval_world = build_world(config.world, evaluation_envs(settings.evaluate_episodes))
        self.groups = build_groups(config, self.eval_world)
        self.learning = [group.name for group in self.groups if group.learner is not None]
        self.with_targets: dict[str, HasTargetPolicy] = {}
        for group in self.groups:
            if isinstance(group.learner, HasTargetPolicy):
                self.with_targets[group.name] = group.learner
        self.window = settings.stop.episodes if settings.stop else RECENT
        self.iteration, self.env_steps, self.wall = 0, 0, 0.0
        self.best_step, self.best_score = -1, -np.inf
        self.score = -np.inf  # of the latest validation
        self.recent: dict[str, deque[float]] = {g.name: deque(maxlen=self.window) for g in self.groups}
        self.step_0: dict[str, Any] = {}
        named = settings.stop.group if settings.stop else None
        self.watched = named or next(
            iter(self.learning), self.groups[0].name
        )  # the group whose return decides `solved`
        probe_learners(config, self.groups)
        self.workers = workers.start(config, self.groups)

    # One iteration ------------------------------------------------------------------------------------

    def advance(self) -> dict[str, float]:
        """Play and learn once; returns the iteration's metrics."""
        self.iteration += 1
        rollout = self.workers.play(self.iteration)
        settings = self.config.train
        progress, ahead = settings.progress(self.iteration), settings.progress(self.iteration + 1)
        spaces = {group.name: group.actor.group_spec.spaces for group in self.groups}
        target_policies = {name: learner.target_policy() for name, learner in self.with_targets.items()}
        joint = Joint(rollout.experiences, self.iteration, progress, spaces, rollout.state, ahead, target_policies)
        metrics = self.count(rollout.episodes)
        for group in self.groups:
            if group.learner is not None:
                random = seeding.generator(self.config.seed, "learn", self.iteration, group.name)
                learned = group.learner.learn(rollout.experiences[group.name], joint, random)
                metrics |= {f"{group.name}/{name}": value for name, value in learned.items()}
        self.env_steps += settings.iteration_steps
        return metrics

    def count(self, episodes: Episodes) -> dict[str, float]:
        """Mean training return of the episodes that ended, and its moving average."""
        metrics = {"episodes": float(len(episodes.length))}
        if len(episodes.length):
            metrics["length_mean"] = float(episodes.length.mean())
            if episodes.success is not None:
                metrics["success_rate"] = float(episodes.success.mean())
        for name, returns in episodes.returns.items():
            each = returns.mean(axis=1)
            self.recent[name].extend(each.tolist())
            if len(each):
                metrics[f"{name}/return_mean"] = float(each.mean())
            if self.recent[name]:
                metrics[f"{name}/return_{self.window}"] = float(np.mean(self.recent[name]))
        return metrics

    def reports(self) -> dict[str, float]:
        """Metrics of policies, advisors, shields, learners and preferences, those in child processes included."""
        elsewhere = self.workers.metrics()
        found: dict[str, float] = {}
        for group in self.groups:
            counters = merge_counters([group.actor.metrics(), elsewhere.get(group.name, {})])
            for part in (group.learner, group.preference):
                counters |= {} if part is None else part.metrics()
            found |= {f"{group.name}/{key}": value for key, value in as_metrics(counters).items()}
        return found

    @property
    def solved(self) -> bool:
        """Whether the latest training episodes reach `train.stop`."""
        stop = self.config.train.stop
        if stop is None:
            return False
        latest = self.recent[self.watched]
        return len(latest) == stop.episodes and float(np.mean(latest)) >= stop.return_mean

    # Evaluation ---------------------------------------------------------------------------------------

    def evaluate(self, purpose: str, actors: list[Actor] | None = None) -> Result:
        """Play greedy episodes on the seeds of `validate` or `evaluate`."""
        seed = seeding.integer(self.config.seed, purpose) if purpose == "validate" else evaluation_seed(0)
        chosen = actors or [group.actor for group in self.groups]
        return evaluate(self.eval_world, chosen, self.config.train.evaluate_episodes, seed)

    def validate(self) -> dict[str, float]:
        """Evaluate on validation seeds and save the policies if they are the best so far."""
        result = self.evaluate("validate")
        score = result.score(self.learning or [group.name for group in self.groups])
        if not np.isfinite(score):
            raise CoterieError(f"the mean return of an evaluation is {score}; the world's rewards must be finite")
        self.score = score
        if score > self.best_score or self.config.train.best == "last":
            self.best_score, self.best_step = score, self.env_steps
            self.save_best()
        plain = result.to_dict()
        metrics = {f"{name}/eval/return_mean": g["return_mean"] for name, g in plain["groups"].items()}
        metrics["eval/length_mean"] = float(result.length.mean())
        if plain["success_rate"] is not None:
            metrics["eval/success_rate"] = plain["success_rate"]
        return metrics

    def baselines(self) -> dict[str, Any]:
        """Scores of random play and the scripted expert in place of the learning groups, on the evaluation seeds."""
        found = {}
        for name, make in self.stand_ins().items():
            actors = [make(g) if g.learner is not None else g.actor for g in self.groups]
            found[name] = self.evaluate("evaluate", actors).to_dict()
        return found

    def stand_ins(self) -> dict[str, Callable[[Group], Actor]]:
        """Baseline actors that can replace a learning group."""
        makers: dict[str, Callable[[Group], Actor]] = {
            "random": lambda g: Actor(g.actor.group_spec, RandomPolicy(RandomSettings(), g.actor.group_spec))
        }
        if isinstance(self.eval_world, HasExpert):
            makers["expert"] = lambda g: Actor(g.actor.group_spec, ExpertPolicy(ExpertSettings(), g.actor.group_spec))
        return makers

    # State --------------------------------------------------------------------------------------------

    def policies(self) -> State:
        return {group.name: group.policy.state() for group in self.groups}

    def save_best(self) -> None:
        from coterie.training.checkpoint import save

        state = {"env_steps": self.env_steps, "policies": self.policies()}
        save(self.run.checkpoint_path(self.env_steps, "best"), state)

    def save(self) -> None:
        """Write a full checkpoint."""
        state = {
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "wall_s": self.wall,
            "best_step": self.best_step,
            "best_score": self.best_score,
            "step_0": self.step_0,
            "recent": {name: list(values) for name, values in self.recent.items()},
            "policies": self.policies(),
            "learners": {g.name: g.learner.state() for g in self.groups if g.learner is not None},
            "preferences": {g.name: g.preference.state() for g in self.groups if g.preference is not None},
            "actors": {g.name: [part.state() for part in g.actor.parts()] for g in self.groups},
            "shards": self.workers.save(),
        }
        self.run.save_checkpoint(state, self.config.train.keep_checkpoints)

    def restore(self, state: State) -> None:
        """Return to a full checkpoint."""
        settings, shards = self.config.train, state["shards"]
        num_envs = sum(len(shard["tally"]["length"]) for shard in shards)
        if (num_envs, len(shards)) != (settings.num_envs, settings.shards):
            raise ConfigError(
                f"train: this run has num_envs={num_envs} and shards={len(shards)}; they cannot change on resume"
            )
        self.iteration, self.env_steps, self.wall = state["iteration"], state["env_steps"], state["wall_s"]
        self.best_step, self.best_score = state["best_step"], state["best_score"]
        self.step_0 = state["step_0"]
        for name, values in state["recent"].items():
            self.recent[name] = deque(values, maxlen=self.window)
        try:
            for group in self.groups:
                group.policy.load(state["policies"][group.name])
                if group.learner is not None:
                    group.learner.load(state["learners"][group.name])
                if group.preference is not None:
                    group.preference.load(state["preferences"][group.name])
                for part, held in zip(group.actor.parts(), state["actors"][group.name], strict=True):
                    part.load(held)
            self.workers.load(shards)
        except ValueError as error:
            raise ConfigError(f"the checkpoint does not fit this config: {error}") from None
        except KeyError as error:
            raise ConfigError(f"the checkpoint does not fit this config: it lacks {error}") from None


def evaluation_seed(seed: int) -> int:
    """The seed that `eval --seed S` plays with; validation draws from another stream."""
    return seeding.integer(seed, "evaluate")


def train(
    config: Config,
    run: Run,
    state: State | None = None,
    quiet: bool = False,
    watch: Watch | None = None,
    report: Report | None = None,
) -> dict[str, Any]:
    """Run the loop to its end, until `watch` returns True, or until Ctrl-C.

    `watch` is called with every validation score but step 0's; with a `watch`, step 0 is never the best. `report` is
    called for a finished run. Returns the summary; `finished` says whether there is one, `interrupted` whether Ctrl-C
    was pressed.
    """
    with fixed_threads(config.train.threads), interruptible() as interrupted:
        try:
            training = Training(config, run)
        except CoterieError:
            run.discard_unstarted()
            raise
        try:
            if state is not None:
                training.restore(state)  # a config that does not fit is refused before any file is changed
            run.cut(-1 if state is None else training.env_steps)
            run.write_config(config)
            if config.train.video:
                warn_undrawable(config.world)
            recorder = Recorder(run, config.train.tensorboard, 0 if state is None else training.env_steps + 1)
            progress = Progress(config.train.total_steps, training.env_steps, quiet)
            try:
                end = loop(training, config.train.iterations, recorder, progress, interrupted, watch)
                if end["finished"] and report is not None:
                    report([run], run.path / "report.html")
                return end | {"interrupted": interrupted.is_set()}
            finally:
                progress.close()
                recorder.close()
        finally:
            training.workers.close()


def loop(
    training: Training,
    total: int,
    recorder: Recorder,
    progress: Progress,
    interrupted: threading.Event,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Iterate until the training ends or is interrupted."""
    settings, started = training.config.train, time.perf_counter() - training.wall
    first = training.env_steps

    def record(metrics: dict[str, float]) -> None:
        training.wall = time.perf_counter() - started
        head = {"iteration": training.iteration, "env_steps": training.env_steps}
        recorder.write(head | {"wall_s": round(training.wall, 3)} | metrics | training.reports())
        progress.show(training.env_steps, training.wall, describe(training, metrics))

    if training.best_step < 0:  # a new run, not one resumed from its step 0
        training.step_0 = training.evaluate("evaluate").to_dict()
        record(training.validate())
        training.save()
        if watch is not None:  # only policies that have learned count as best
            training.best_score = -np.inf
    wall_before = training.wall
    while training.iteration < total and not training.solved:
        metrics = training.advance()
        last = training.iteration == total or training.solved
        if last or training.iteration % settings.evaluate_every == 0:
            metrics |= training.validate()
            last = (watch is not None and watch(training.env_steps, training.score)) or last
        record(metrics)
        if last or training.iteration % settings.checkpoint_every == 0 or interrupted.is_set():
            recorder.sync()
            training.save()
        if interrupted.is_set() and not last:
            return {"finished": False, "env_steps": training.env_steps}
        if last:
            break
    if training.env_steps == first:  # killed after its last iteration: only the evaluation is left
        first, wall_before = 0, 0.0
    speed = (training.env_steps - first) / max(training.wall - wall_before, 1e-9)
    return finish(training, speed)


def finish(training: Training, speed: float) -> dict[str, Any]:
    """Evaluate the best policies on held-out seeds and write the summary and video."""
    run, last = training.run, training.evaluate("evaluate").to_dict()
    saved = run.load_checkpoint("best")
    for group in training.groups:
        group.policy.load(saved["policies"][group.name])
    summary = {
        "experiment": training.config.experiment,
        "seed": training.config.seed,
        "env_steps": training.env_steps,
        "wall_s": round(training.wall, 3),
        "steps_per_s": round(speed, 1),
        "solved": training.solved,
        "episodes": training.config.train.evaluate_episodes,
        "best_step": training.best_step,
        "evaluation": training.evaluate("evaluate").to_dict(),
        "last": last,
        "step_0": training.step_0,
        "baselines": training.baselines(),
    }
    unanswered = count_unanswered(training.reports())
    summary |= {"unanswered": unanswered} if unanswered else {}
    if training.config.train.video:
        film(training)
    write_text(run.summary_file, json.dumps(summary, indent=2) + "\n")
    return {"finished": True} | summary


def film(training: Training) -> None:
    """Write a video of one episode of the best policies, if the world can be drawn."""
    from coterie.core.world import Renderable
    from coterie.training.video import write_video

    world = build_render_world(training.config.world)
    if isinstance(world, Renderable):
        path = training.run.path / "videos" / "eval" / f"step-{training.best_step:012d}.gif"
        write_video(world, [group.actor for group in training.groups], evaluation_seed(0), path)


def describe(training: Training, metrics: dict[str, float]) -> str:
    """The numbers of the progress line."""
    words = []
    for name in training.learning or list(training.recent):
        if training.recent[name]:
            words.append(f"{name} {np.mean(training.recent[name]):.2f}")
    if "eval/success_rate" in metrics:
        words.append(f"success {metrics['eval/success_rate']:.0%}")
    return "  ".join(words)


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """The first Ctrl-C lets the loop finish its iteration; the second one exits at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # even where the parent process ignored it
        event.set()

    signal.signal(signal.SIGINT, ask)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def run_directory(config: Config, out: str | Path | None) -> Path:
    """Where a new run goes: `--out`, or runs/EXPERIMENT/DATE-TIME-seedS."""
    if out is not None:
        return Path(out)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / config.experiment / f"{stamp}-seed{config.seed}"
    path, again = base, 1
    while path.exists():
        again += 1
        path = base.with_name(f"{base.name}-{again}")
    return path
