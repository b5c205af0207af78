"""Output of commands about finished runs: scores in columns, the files, a closing table after a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from coterie.runs.run import Run

UNREADABLE = "/unreadable"  # after a role's name in the counters of text tasks
HEAD = ["policy", "group", "return", "95% interval", "length", "success"]


def print_outcome(run: Run, one_of_many: bool = False) -> bool:
    """Print a run's scores and files (`one_of_many`: inside its directory); False when a signal stopped it early."""
    from coterie.runs.run import nobody_learns
    from coterie.runs.times import duration, times
    from coterie.video import mp4

    summary = run.summary()
    if summary is None:
        print(f"stopped and saved at {max(run.steps(), default=0):,} steps; continue with: coterie resume {run.path}")
        return False
    took = times(run, summary)
    speed = f"{duration(took.training)}, {took.steps_per_second:,.0f} per second"
    print(f"{summary['env_steps']:,} steps in {speed}; step 0 took {duration(took.before)}")
    early = why_early(run, summary)
    if early:
        print(early)
    print(f"greedy play, {summary['episodes']} held-out episodes:")
    last = summary.get("best_rule") == "last"  # runs of earlier versions do not say
    rows = {f"trained ({'last' if last else 'best'})": summary["evaluation"]}
    rows |= {"trained, drawn": summary["drawn"]} if "drawn" in summary else {}
    rows |= {"step 0": summary["step_0"]}
    rows |= {"step 0, drawn": summary["step_0"]["drawn"]} if "drawn" in summary["step_0"] else {}
    if nobody_learns(run):  # all evaluations have the same players
        rows = {"players": summary["evaluation"]}
    print_results(rows | summary["baselines"])
    if "best_reason" in summary and not nobody_learns(run):  # not in runs of 0.1
        print(f"best     step {summary['best_step']:,}: {summary['best_reason']}")
    print(f"run      {run.path}")
    videos = run.videos()[-1:]
    report = run.path / "report.html"
    if one_of_many:  # paths would be too long for 80 columns
        names = [f"{video.relative_to(run.path)}{_more(video)}" for video in videos]
        names += [report.name] if report.exists() else []
        if names:
            print(f"in it    {', '.join(names)}")
    else:
        for video in videos:
            print(f"video    {video}{_more(video)}")
            if not mp4.available():
                print(f"         an MP4 as well: {mp4.CURE}")
        if report.exists():
            print(f"report   {report}")
    print_unanswered(summary.get("unanswered", {}))
    return True


def why_early(run: Run, summary: Mapping[str, Any]) -> str:
    """The reason why a finished run stopped before `train.total_steps`, or the goal that it reached; "" if neither."""
    settings = run.config().train
    early = summary["env_steps"] < settings.total_steps
    if summary["solved"] and settings.stop is not None:
        goal = f"a mean return of {settings.stop.return_mean:g} over {settings.stop.episodes} training episodes"
        return f"{'stopped early: ' if early else ''}train.stop is reached, {goal}"
    if not early:
        return ""
    return "stopped early: the learners have nothing more to learn"


def _more(video: Path) -> str:
    return " (and .mp4)" if video.with_suffix(".mp4").exists() else ""


def print_results(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Print evaluations as a table: a line for each policy and group."""
    from coterie.studies.columns import columns

    rows = []
    for name, result in results.items():
        for group, score in result["groups"].items():
            bounds = "–" if score["return_ci95"] is None else "[{:.2f}, {:.2f}]".format(*score["return_ci95"])
            success = _success(result)
            numbers = [f"{score['return_mean']:.2f}", bounds, f"{score['length_mean']:.1f}"]
            rows.append([name, group, *numbers, success])
    for line in columns(HEAD, rows, left=2):
        print(f"  {line}")
    instances = sorted({result["instances"] for result in results.values() if "instances" in result})
    if instances:  # of tasks that are written out
        print(f"  distinct instances among the episodes: {' or '.join(map(str, instances))}")


def _success(result: Mapping[str, Any]) -> str:
    """The success rate with its 95% interval, in percent; "" where there is none."""
    if result["success_rate"] is None:
        return ""
    bounds = result.get("success_ci95")  # summaries of earlier versions have none
    found = f"{result['success_rate']:.1%}"
    return found + ("" if bounds is None else f" [{100 * bounds[0]:.0f}, {100 * bounds[1]:.0f}]")


def print_counters(counters: Mapping[str, float], tokens: Mapping[str, float]) -> None:
    """Print what the world counted: a table of the roles that write, other numbers one a line."""
    from coterie.studies.columns import columns

    unreadable = {name.removesuffix(UNREADABLE): v for name, v in counters.items() if name.endswith(UNREADABLE)}
    rows = [
        [role, f"{share:.1%}", f"{tokens[role]:.1f}" if role in tokens else "-"] for role, share in unreadable.items()
    ]
    for line in columns(["role", "unreadable answers", "tokens per answer"], rows) if rows else ():
        print(f"  {line}")
    for name, value in counters.items():
        if not name.endswith(UNREADABLE):
            print(f"  {name:24} {value:.3g}")


def print_unanswered(found: dict[str, dict[str, int]]) -> None:
    """Print which language models left questions without an answer; raise an error for one that answered none."""
    from coterie.training.language_models import describe_unanswered, refuse_silent_models

    refuse_silent_models(found)
    for line in describe_unanswered(found):
        print(line)


def print_sweep(runs: Sequence[Run], out: str | None) -> None:
    """Print a table of a sweep's runs: the settings in which they differ, and their scores."""
    from coterie.runs.times import duration
    from coterie.studies.columns import columns
    from coterie.studies.compare.runs import compared_settings, make_labels

    finished = [(run, summary) for run in runs if (summary := run.summary()) is not None]
    if len(finished) < 2:
        return
    configs = [run.config() for run, _ in finished]
    labels = make_labels([""] * len(configs), [compared_settings(config) for config in configs])
    several = len({config.seed for config in configs}) > 1
    rows = []
    for label, config, (_, summary) in zip(labels, configs, finished, strict=True):
        words = " ".join(filter(None, [f"seed={config.seed}" if several else "", label.strip()])) or "run"
        learning = [name for name, group in config.groups.items() if group.learner is not None] or list(config.groups)
        scores = [summary["evaluation"]["groups"][name]["return_mean"] for name in learning]
        rate = summary["evaluation"]["success_rate"]
        success = "" if rate is None else f"{rate:.1%}"
        rows.append([words, f"{sum(scores) / len(scores):.2f}", success, duration(summary["wall_s"])])
    print(f"\n{len(finished)} runs, best policies, mean return of the groups that learn:")
    for line in columns(["run", "return", "success", "time"], rows):
        print(f"  {line}")
    where = out if out is not None else "RUN…"
    print(f"side by side: coterie compare {where}, coterie report {where}")
