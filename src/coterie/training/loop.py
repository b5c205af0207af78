"""The training loop: play, learn, record, evaluate, save.

An *iteration* plays `rollout_steps` steps of every environment and lets each group learn once. A *record* is one line
of metrics.jsonl. *Validation* seeds choose the best checkpoint, *evaluation* seeds score it; a world with held-out
instances has some for each.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from coterie.advice.policy import AdvisorPolicy
from coterie.config.schema import Config, ConfigError, GroupConfig, SeatedRun, leaves, to_dict
from coterie.core import seeding
from coterie.core.group import Actor, Group, GroupSpec, Learner, Policy, WeighsAdvice
from coterie.core.types import (
    CoterieError,
    Counter,
    Counters,
    Distinct,
    Joint,
    Mean,
    State,
    TargetPolicy,
    as_metrics,
    counted_since,
    merge_counters,
)
from coterie.core.world import HasExpert, HasGuess
from coterie.nn.threads import fixed_threads
from coterie.policies.scripted import (
    ExpertPolicy,
    ExpertSettings,
    GuessPolicy,
    GuessSettings,
    RandomPolicy,
    RandomSettings,
)
from coterie.runs.checkpoint import fitting
from coterie.runs.extras import extra
from coterie.runs.interrupt import Interrupted, Interruption, interruptible
from coterie.runs.metrics import Progress, Recorder
from coterie.runs.provenance import locked, note_start
from coterie.runs.run import Run, write_text
from coterie.training import workers
from coterie.training.best import Best
from coterie.training.build import (
    build_evaluation_world,
    build_groups,
    build_render_world,
    build_validation_world,
    needs_play,
    probe_learners,
    start_groups,
)
from coterie.training.evaluate import Result, evaluate
from coterie.training.language_models import count_unanswered, keep_answers
from coterie.training.plan_tables import write_plans
from coterie.training.runner import Episodes
from coterie.video.films import warn_undrawable

log = logging.getLogger("coterie")
RECENT = 100  # episodes in the moving average
SLOW_EVALUATION = 10.0  # seconds after which a run names the settings that shorten evaluations


class AfterValidation(Enum):
    """The continuation of a training after a validation."""

    CONTINUE = "continue"
    FINISH = "finish"  # as after its last iteration: score the best policies, write the summary
    PAUSE = "pause"  # save, and return without finishing the run


Watch = Callable[[int, float], AfterValidation]  # (env_steps, validation score) -> how the training goes on
Report = Callable[[list[Run], Path], Any]  # writes a page for a finished run: `studies.report.report.write_report`


class Training:
    """A run in progress: everything that a checkpoint holds, and how to advance it."""

    def __init__(self, config: Config, run: Run) -> None:
        self.config, self.run = keep_answers(config, run.path), run
        config, settings = self.config, config.train
        self.eval_world = build_evaluation_world(config.world, settings.evaluate_episodes)
        self.validation_world = build_validation_world(config.world, settings.evaluate_episodes) or self.eval_world
        self.groups = build_groups(config, self.eval_world)
        self.learning = [group.name for group in self.groups if group.learner is not None]
        found = {group.name: getattr(group.learner, "target_policy", None) for group in self.groups}
        self.target_policies: dict[str, Callable[[], TargetPolicy]] = {n: f for n, f in found.items() if f is not None}
        self.weighing: dict[str, WeighsAdvice] = {}
        for group in self.groups:
            if isinstance(group.actor.advisor, WeighsAdvice):
                self.weighing[group.name] = group.actor.advisor
        self.window = settings.stop.episodes if settings.stop else RECENT
        self.iteration, self.env_steps, self.wall = 0, 0, 0.0
        self.best = Best(settings.best, self.learning or [group.name for group in self.groups])
        self.score = -np.inf  # of the latest validation
        self.validations, self.said_slow = 0, False  # the first one compiles: it says little about later ones
        self.recent: dict[str, deque[float]] = {g.name: deque(maxlen=self.window) for g in self.groups}
        self.recent_success: deque[bool] = deque(maxlen=self.window)  # for the progress line only; not saved
        self.step_0: dict[str, Any] = {}
        self.unrecorded: dict[str, float] | None = None  # metrics of an iteration whose evaluation a signal cut short
        self.advice: dict[str, dict[str, list[float]]] = {}  # group -> `advice_counts` of the latest record
        self.surplus: dict[str, Counters] = {}  # group -> what restored advisors count beyond what was saved
        self.progress: Progress | None = None  # shows evaluations that take long
        first = self.learning[0] if self.learning else self.groups[0].name
        self.watched = (settings.stop and settings.stop.group) or first  # the group whose return decides `solved`
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
        target_policies = {name: target_policy() for name, target_policy in self.target_policies.items()}
        steps = settings.iteration_steps
        joint = Joint(
            rollout.experiences, self.iteration, progress, spaces, rollout.state, ahead, target_policies, steps
        )
        metrics = self.count(rollout.episodes)
        metrics |= {f"world/{name}": value for name, value in as_metrics(rollout.counters).items()}
        for group in self.groups:
            if group.learner is not None and not is_finished(group.learner):  # a finished group only plays
                random = seeding.generator(self.config.seed, "learn", self.iteration, group.name)
                own = rollout.experiences[group.name]
                own = self.weighing[group.name].weigh(own) if group.name in self.weighing else own
                learned = group.learner.learn(own, joint, random)
                if not isinstance(learned, Mapping):
                    what = f"{type(group.learner).__name__}.learn must return a dict of metrics"
                    raise CoterieError(f"groups.{group.name}.learner: {what}, got {type(learned).__name__}")
                metrics |= {f"{group.name}/{name}": value for name, value in learned.items()}
        self.env_steps += steps
        return metrics

    def count(self, episodes: Episodes) -> dict[str, float]:
        """Mean training return of the episodes that ended, and its moving average."""
        metrics = {"episodes": float(len(episodes.length))}
        if len(episodes.length):
            metrics["length_mean"] = float(episodes.length.mean())
            if episodes.success is not None:
                metrics["success_rate"] = float(episodes.success.mean())
                self.recent_success.extend(episodes.success.tolist())
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
        found: dict[str, float] = {}
        acting = self.counters()
        self.advice = {name: advice_counts(counters) for name, counters in acting.items()}
        for group in self.groups:
            counters = acting[group.name]
            for part in (group.learner, group.preference):
                counters |= {} if part is None else part.metrics()
            found |= {f"{group.name}/{key}": value for key, value in as_metrics(counters).items()}
        return found

    def counters(self) -> dict[str, dict[str, Counter]]:
        """Counters of policies, advisors and shields, by group, those in child processes included."""
        elsewhere = self.workers.metrics()
        found = {g.name: merge_counters([g.actor.metrics(), elsewhere.get(g.name, {})]) for g in self.groups}
        for name, surplus in self.surplus.items():
            found[name] |= counted_since(surplus, {key: found[name][key] for key in surplus if key in found[name]})
        return found

    @property
    def solved(self) -> bool:
        """Whether the latest training episodes reach `train.stop`."""
        stop = self.config.train.stop
        if stop is None:
            return False
        latest = self.recent[self.watched]
        return len(latest) == stop.episodes and float(np.mean(latest)) >= stop.return_mean

    @property
    def converged(self) -> bool:
        """Whether every learner says that there is nothing more to learn."""
        learners = [group.learner for group in self.groups if group.learner is not None]
        return bool(learners) and all(map(is_finished, learners))

    # Evaluation ---------------------------------------------------------------------------------------

    @property
    def scores_drawn(self) -> bool:
        """Whether drawn actions are scored as well as greedy ones: a policy that is taught, imitates or goes on from an
        earlier run may draw well and choose badly, or the reverse."""
        taught, config = any(map(is_taught, self.groups)), self.config
        return taught or not needs_play(config) or any(map(goes_on, config.groups.values()))

    def score_step_0(self) -> None:
        """Score the untrained policies on held-out episodes."""
        self.step_0 = self.evaluate("evaluate").to_dict()
        if self.scores_drawn:
            self.step_0["drawn"] = self.evaluate("evaluate", greedy=False).to_dict()

    def evaluate(self, purpose: str, actors: list[Actor] | None = None, greedy: bool = True) -> Result:
        """Play episodes on the seeds of `validate` or `evaluate`."""
        validates = purpose == "validate"
        seed = seeding.integer(self.config.seed, purpose) if validates else evaluation_seed(0)
        world = self.validation_world if validates else self.eval_world
        chosen = actors or [group.actor for group in self.groups]
        episodes, start = self.config.train.evaluate_episodes, time.perf_counter()

        def report(ended: int, steps: int) -> None:
            if self.progress is not None:
                self.progress.show_evaluation(ended, episodes, steps, time.perf_counter() - start)

        result = evaluate(world, chosen, episodes, seed, greedy, report=report)
        took = time.perf_counter() - start
        self.validations += validates  # evaluations at the end may compile baselines, and do not repeat
        if validates and took > SLOW_EVALUATION and self.validations > 1 and not self.said_slow:
            self.said_slow = True
            log.warning(
                "an evaluation of %d episodes takes %.0f s; lower train.evaluate_episodes, or raise "
                "train.evaluate_every (%d iterations)",
                episodes,
                took,
                self.config.train.evaluate_every,
            )
        return result

    def validate(self) -> dict[str, float]:
        """Evaluate on validation seeds and save the policies if they are the best so far."""
        result = self.evaluate("validate")
        self.score = result.score(self.best.groups)
        if self.best.consider(result, self.env_steps):
            self.save_best()
        plain = result.to_dict()
        metrics = {f"{name}/eval/return_mean": g["return_mean"] for name, g in plain["groups"].items()}
        metrics["eval/length_mean"] = float(result.length.mean())
        if plain["success_rate"] is not None:
            metrics["eval/success_rate"] = plain["success_rate"]
        return metrics | {f"eval/{name}": value for name, value in as_metrics(result.counters).items()}

    def baselines(self) -> dict[str, Any]:
        """Scores of random play, guesses, the scripted expert and teachers in place of the learning groups.

        Where no group learns they play in place of all groups.
        """
        nobody_learns = all(group.learner is None for group in self.groups)

        def score(make: Callable[[GroupSpec], Policy]) -> dict[str, Any]:
            specs = [group.actor.group_spec for group in self.groups]
            stand_ins = [Actor(spec, make(spec)) for spec in specs]
            pairs = zip(self.groups, stand_ins, strict=True)
            return self.evaluate(
                "evaluate", [s if nobody_learns or g.learner is not None else g.actor for g, s in pairs]
            ).to_dict()

        def play_teachers(greedy: bool) -> dict[str, Any]:
            actors = [teacher_actor(g.actor) if is_taught(g) else g.actor for g in self.groups]
            return self.evaluate("evaluate", actors, greedy).to_dict()

        found = {"random": score(lambda spec: RandomPolicy(RandomSettings(), spec))}
        if isinstance(self.eval_world, HasGuess):
            with extra("score of guesses"):
                found["guess"] = score(lambda spec: GuessPolicy(GuessSettings(), spec))
        if isinstance(self.eval_world, HasExpert):
            with extra("score of the expert"):
                found["expert"] = score(lambda spec: ExpertPolicy(ExpertSettings(), spec))
        if any(map(is_taught, self.groups)):
            with extra("score of the teacher"):
                found |= {"teacher": play_teachers(True), "teacher, drawn": play_teachers(False)}
        return found

    # State --------------------------------------------------------------------------------------------

    def policies(self) -> State:
        return {group.name: group.policy.state() for group in self.groups}

    def save_best(self) -> None:
        from coterie.runs.checkpoint import save

        state = {"env_steps": self.env_steps, "policies": self.policies()}
        save(self.run.checkpoint_path(self.env_steps, "best"), state)

    def save(self) -> None:
        """Write a full checkpoint."""
        state = {
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "wall_s": self.wall,
            "step_0": self.step_0,
            "unrecorded": self.unrecorded,
            "recent": {name: list(values) for name, values in self.recent.items()},
            "policies": self.policies(),
            "learners": {g.name: g.learner.state() for g in self.groups if g.learner is not None},
            "preferences": {g.name: g.preference.state() for g in self.groups if g.preference is not None},
            "actors": {g.name: [part.state() for part in g.actor.parts()] for g in self.groups},
            "shards": self.workers.save(),
            "advice": self.advice,
        } | self.best.state()
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
        self.best.load(state)
        self.step_0 = state["step_0"]
        self.unrecorded = state.get("unrecorded")  # not in checkpoints of 0.2
        for name, values in state["recent"].items():
            self.recent[name] = deque(values, maxlen=self.window)
        for group in self.groups:
            path = f"groups.{group.name}"
            with fitting(f"{path}.policy"):
                group.policy.load(state["policies"][group.name])
            if group.learner is not None:
                with fitting(f"{path}.learner"):
                    group.learner.load(state["learners"][group.name])
            if group.preference is not None:
                with fitting(f"{path}.preference"):
                    group.preference.load(state["preferences"][group.name])
            with fitting(path):
                for part, held in zip(group.actor.parts(), state["actors"][group.name], strict=True):
                    part.load(held)
        self.workers.load(shards)
        self.surplus = {}
        now = {name: advice_counts(counters) for name, counters in self.counters().items()}
        self.advice = state.get("advice", {})  # not in checkpoints of 0.2
        for name, saved in self.advice.items():
            self.surplus[name] = counted_since(as_counters(saved), as_counters(now[name]))


def advice_counts(counters: Counters) -> dict[str, list[float]]:
    """Counters of advisors since the run began: totals and weights of means, totals alone of counts.

    Advisors restore what they counted, and every process has its own. Resumed with another number of processes, more or
    fewer of them restore the same counts.
    """
    cumulative = {key: value for key, value in counters.items() if key.startswith("advice/")}
    return {
        key: list(value) if isinstance(value, Mean) else [float(value)]
        for key, value in cumulative.items()
        if not isinstance(value, Distinct)  # texts that several processes have met are counted once
    }


def as_counters(saved: dict[str, list[float]]) -> dict[str, Counter]:
    """Counters from what `advice_counts` returns."""
    return {key: Mean(*value) if len(value) > 1 else value[0] for key, value in saved.items()}


def is_finished(learner: Learner) -> bool:
    """Whether a learner says that there is nothing more to learn."""
    return bool(getattr(learner, "finished", False))


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
    """Run the loop to its end, until `watch` finishes or pauses it, or until Ctrl-C or SIGTERM.

    `watch` is called with every validation score but step 0's, `report` for a finished run. Returns the summary;
    `finished` says whether there is one, `interrupted` whether a signal came. Before the first checkpoint a signal
    raises `Interrupted`, and a new directory is freed.
    """
    with fixed_threads(config.train.threads), interruptible() as interrupted, locked(run), discarding(run):
        end = train_until_end(config, run, state, quiet, watch, interrupted)
        if end["finished"] and report is not None:  # the memory of rollouts and replay is free by now
            with extra("report"):
                report([run], run.path / "report.html")
        return end | {"interrupted": interrupted.is_set()}


def train_until_end(
    config: Config, run: Run, state: State | None, quiet: bool, watch: Watch | None, interrupted: Interruption
) -> dict[str, Any]:
    """Build the training, or restore it, and run the loop; what it holds is freed on return."""
    training = Training(config, run)
    try:
        if state is None:
            start_groups(config, training.groups)
        else:
            training.restore(state)  # a config that does not fit is refused before any file is changed
        run.cut(-1 if state is None else training.env_steps)
        run.write_config(config)
        note_start(run, resumed=state is not None)
        if config.train.video:
            warn_undrawable(config.world)
        first = 0 if state is None else training.env_steps + 1
        recorder = Recorder(run, config.train, first, leaves(to_dict(config)))
        whole = config.train.iterations * config.train.iteration_steps  # total_steps may end within an iteration
        training.progress = progress = Progress(whole, training.env_steps, quiet)
        try:
            return loop(training, config.train.iterations, recorder, progress, interrupted, watch)
        finally:
            progress.close()
            recorder.close()
    finally:
        training.workers.close()


@contextmanager
def discarding(run: Run) -> Iterator[None]:
    """Free the directory of a new run that fails before its first record."""
    new = not run.metrics_file.exists()
    try:
        yield
    except BaseException:
        if new:
            run.discard_unstarted()
        raise


def loop(
    training: Training,
    total: int,
    recorder: Recorder,
    progress: Progress,
    interrupted: Interruption,
    watch: Watch | None = None,
) -> dict[str, Any]:
    """Iterate until the training ends or is interrupted.

    A signal ends an evaluation. That of an iteration is played after a resume, before the iteration is recorded.
    """
    settings, started = training.config.train, time.perf_counter() - training.wall
    first = training.env_steps

    def record(metrics: dict[str, float]) -> None:
        training.wall = time.perf_counter() - started
        head = {"iteration": training.iteration, "env_steps": training.env_steps, "wall_s": round(training.wall, 3)}
        recorder.write(head | metrics | training.reports() | metrics)  # the iteration's own metrics come first, and win
        progress.show(training.env_steps, training.wall, describe(training))

    def ended() -> bool:
        return training.iteration >= total or training.solved or training.converged

    if training.best.step < 0:  # a new run, not one resumed from its step 0
        try:
            training.score_step_0()
            record(training.validate())
        except Interrupted:
            raise Interrupted("stopped before the first checkpoint; nothing is kept") from None
        training.save()
    wall_before = training.wall
    while training.unrecorded is not None or not ended():
        metrics = training.advance() if training.unrecorded is None else training.unrecorded
        training.unrecorded, paused, last = None, False, ended()
        if last or training.iteration % settings.evaluate_every == 0:
            try:
                metrics |= training.validate()
            except Interrupted:
                training.wall = time.perf_counter() - started
                training.unrecorded = training.reports() | metrics
                recorder.sync()
                training.save()
                return {"finished": False, "env_steps": training.env_steps}
            if watch is not None:
                after = AfterValidation(watch(training.env_steps, training.score))  # raises for anything else
                last, paused = last or after is AfterValidation.FINISH, after is AfterValidation.PAUSE
        record(metrics)
        if last or paused or training.iteration % settings.checkpoint_every == 0 or interrupted.is_set():
            recorder.sync()
            training.save()
        if (interrupted.is_set() or paused) and not last:
            return {"finished": False, "env_steps": training.env_steps}
        if last:
            break
    try:
        return finish(training, speed_since(training, first, wall_before))
    except Interrupted:  # the last checkpoint is there; only the scores are missing
        return {"finished": False, "env_steps": training.env_steps}


def speed_since(training: Training, steps: int, wall: float) -> float:
    """Environment steps per second since so many steps and seconds; of the whole training where none have followed."""
    if training.env_steps == steps:  # killed after its last iteration: only the evaluation is left
        steps, wall = 0, 0.0
    return (training.env_steps - steps) / max(training.wall - wall, 1e-9)


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
        "best_step": training.best.step,
        "best_rule": training.best.rule,
        "best_reason": training.best.reason,
        "evaluation": training.evaluate("evaluate").to_dict(),
        "last": last,
        "step_0": training.step_0,
        "baselines": training.baselines(),
    }
    if "drawn" in training.step_0:
        summary["drawn"] = training.evaluate("evaluate", greedy=False).to_dict()
    unanswered = count_unanswered(training.reports())
    summary |= {"unanswered": unanswered} if unanswered else {}
    write_text(run.summary_file, json.dumps(summary, indent=2) + "\n")
    with extra("plan table"):
        write_plans(training.groups, run.path, training.workers.plans())
    if training.config.train.video:
        with extra("video", "; train.video=false makes none"):
            try:
                write_best_video(training)
            except Interrupted:  # everything else is there
                raise CoterieError("stopped by a signal; 'coterie watch RUN' makes one") from None
    return {"finished": True} | summary


def goes_on(group: GroupConfig) -> bool:
    """Whether a group learns from the weights of an earlier run on."""
    return group.learner is not None and (isinstance(group.policy, SeatedRun) or group.start is not None)


def is_taught(group: Group) -> bool:
    """Whether a group learns from an advisor whose own score belongs into the summary."""
    advisor = group.actor.advisor
    return group.learner is not None and advisor is not None and advisor.scored_alone


def teacher_actor(actor: Actor) -> Actor:
    """The group's advisor in the place of its policy."""
    if actor.advisor is None:
        raise CoterieError(f"group '{actor.group_spec.group}' has no advisor")
    return Actor(actor.group_spec, AdvisorPolicy(actor.advisor), actor.members, shield=actor.shield)


def write_best_video(training: Training) -> None:
    """Write a video of one episode of the best policies, if the world can be drawn."""
    from coterie.core.world import Renderable
    from coterie.training.players import policy_kind
    from coterie.video.films import Showing, video_paths, write_video

    world = build_render_world(training.config.world)
    if isinstance(world, Renderable):
        path = training.run.path / "videos" / "eval" / f"step-{training.best.step:012d}.gif"
        kinds = {name: policy_kind(group) for name, group in training.config.groups.items()}
        actors = [group.actor for group in training.groups]
        write_video(world, actors, evaluation_seed(0), video_paths(path), Showing(episodes=None, kinds=kinds))


def describe(training: Training) -> str:
    """The numbers of the progress line, all of the latest training episodes; empty before the first has ended."""
    shown = training.learning or list(training.recent)
    words = [f"{name} {np.mean(training.recent[name]):.2f}" for name in shown if training.recent[name]]
    if training.recent_success:
        words.append(f"success {np.mean(training.recent_success):.0%}")
    return f"training: {'  '.join(words)}" if words else ""


def run_directory(config: Config, out: str | Path | None) -> Path:
    """The directory of a new run: `--out`, or runs/EXPERIMENT/DATE-TIME-seedS."""
    if out == "":  # of a shell variable that is not set
        raise ConfigError("--out: expected a directory, got ''; '.' is the working directory")
    if out is not None:
        return Path(out)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / config.experiment / f"{stamp}-seed{config.seed}"
    path, again = base, 1
    while path.exists():
        again += 1
        path = base.with_name(f"{base.name}-{again}")
    return path
