"""How many labels DAgger and behavioural cloning need on DoorKey-8x8, beside those of the package `imitation`.

    python benchmarks/dagger.py --seeds 5 --imitation .venv-imitation/bin/python

An expert's label is one decision. Cloning reads that many decisions of the scripted expert's own episodes; DAgger has
the decisions labelled that its student meets. Both packages clone the same episodes. All have a network of 2 × 128 and
about as many gradient steps per label (DAgger) or in all (cloning), of 64 labels each; β of both DAggers falls linearly
to 0 at 15% of the labels. Scores are mean returns of 200
episodes of greedy play that nobody learned from. DAgger's curve is one run; its score at n labels is that of the last
round with n or fewer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from interleave import HERE, commit, measure

import coterie
from coterie.core import demonstrations
from coterie.core.demonstrations import Demonstrations
from coterie.studies import figures
from coterie.studies.demonstrate.record import DemonstrationSpec, record
from coterie.studies.statistics import Estimate

EXPERIMENT = "doorkey-expert-ppo"
PLAIN = ["world.size=8", "train.video=false", "train.tensorboard=false", "train.evaluate_episodes=200"]
LABEL = "{name: policy, policy: expert, use: {mode: label, until: 0.15}}"
LEARNER = "groups.agent.learner"
LEAST = 10  # decisions that an episode of the expert has in the mean, at least
ARMS = ["DAgger", "DAgger of imitation", "cloning", "cloning of imitation"]
Curve = list[list[float]]  # labels and mean return


def demonstrate(most: int, seed: int, folder: Path) -> Demonstrations:
    """Episodes of the expert with at least so many decisions, others for every seed."""
    return record(DemonstrationSpec(EXPERIMENT, "expert", most // LEAST, seed), folder, ["world.size=8"])[0]


def ours_clone(shown: Demonstrations, labels: int, updates: int, seed: int, folder: Path) -> Curve:
    """Behavioural cloning of as many whole episodes as have at most these labels."""
    episodes = int(np.searchsorted(shown.starts, labels, side="right")) - 1
    demonstrations.save(folder, [shown.select(range(episodes))])
    words = [f"seed={seed}", f"{LEARNER}.validation=0", f"train.total_steps={64 * updates}"]
    run = coterie.clone(EXPERIMENT, [folder], [*PLAIN, *words, "train.evaluate_every=10000"], quiet=True, out=None)
    return [[int(shown.starts[episodes]), score(run.summary()["last"])]]


def ours_dagger(labels: int, seed: int) -> Curve:
    """DAgger: 128 labels and 100 gradient steps per iteration."""
    words = [f"{LEARNER}={{name: dagger, updates: 100}}", f"groups.agent.advisor={LABEL}", f"seed={seed}"]
    play = ["train.num_envs=8", "train.rollout_steps=16", "train.evaluate_every=1", f"train.total_steps={labels}"]
    run = coterie.train(EXPERIMENT, [*PLAIN, *words, *play], quiet=True)
    key = "agent/eval/return_mean"
    return [[line["agent/labels"], line[key]] for line in run.metrics() if key in line and "agent/labels" in line]


def score(result: dict[str, Any]) -> float:
    return float(result["groups"]["agent"]["return_mean"])


def peer(python: str, method: str, labels: int, seed: int, *more: str) -> Curve:
    """An arm of the package `imitation`, in its own environment."""
    words = ["--method", method, "--labels", str(labels), "--seed", str(seed), *more]
    found: Any = measure([python, str(HERE / "peers" / "imitation_doorkey.py"), *words])
    return found["curve"]


def at(curve: Curve, labels: int) -> float:
    """The score of the last round with at most these labels."""
    return next((value for count, value in reversed(curve) if count <= labels), 0.0)


def needed(scores: dict[int, list[float]], enough: float) -> int | None:
    """The least number of labels from which on the mean over seeds is good enough; None: never."""
    found = None
    for labels in sorted(scores, reverse=True):
        if statistics.mean(scores[labels]) < enough:
            break
        found = labels
    return found


def draw(result: dict[str, Any]) -> bytes:
    """Mean return by labels, with the range over seeds."""
    lines = []
    for number, (arm, scores) in enumerate(result["arms"].items()):
        values = np.array(list(scores.values()))  # [labels, seeds]
        line = Estimate(values.mean(axis=1), values.min(axis=1), values.max(axis=1))
        lines.append(figures.Series(arm, figures.colour(number), np.array([int(count) for count in scores]), line))
    goal = figures.Reference("95% of the expert", 0.95 * result["expert"], threshold=True)
    chart = figures.Chart("DoorKey 8 × 8", "labels by the expert", "mean return", tuple(lines), (goal,), share=True)
    return figures.chart_as_png(chart)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--labels", type=int, nargs="+", default=[256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048])
    parser.add_argument("--more", type=int, nargs="*", default=[], help="more labels for cloning")
    parser.add_argument("--updates", type=int, default=1600, help="gradient steps of cloning, of 64 labels each")
    parser.add_argument("--imitation", help="the Python of an environment with the package `imitation`")
    parser.add_argument("--out", type=Path, default=Path("docs/results/dagger.json"))
    parser.add_argument("--resume", action="store_true", help="go on after the seeds that the file has")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS, help="others keep what the file has of them")
    given = parser.parse_args()
    folder, most = Path(tempfile.mkdtemp()), max(given.labels)
    arms: dict[str, dict[int, list[float]]] = {}
    wanted = [arm for arm in given.arms if given.imitation or "imitation" not in arm]
    before = json.loads(given.out.read_text()) if given.out.exists() else {"arms": {}}
    for arm, found in before["arms"].items():
        if given.resume or (arm not in wanted and given.arms != ARMS):
            arms[arm] = {int(labels): scores for labels, scores in found.items()}
    kept = {name: before.get(name) for name in ("command", "commit")} if set(arms) - set(wanted) else None
    done = max((len(scores) for arm in wanted for scores in arms.get(arm, {}).values()), default=0)

    def add(arm: str, counts: list[int], curve: Curve) -> None:
        for labels in counts:
            arms.setdefault(arm, {}).setdefault(labels, []).append(round(at(curve, labels), 4))
        print(arm, arms[arm], file=sys.stderr, flush=True)

    returns: list[float] = []
    for seed in range(given.seeds):
        shown = demonstrate(max(given.labels + given.more), seed, folder / f"expert-{seed}")
        returns += [one.returns["agent"][0] for one in shown.episodes]
        if seed < done:
            continue
        if "DAgger" in wanted:
            add("DAgger", given.labels, ours_dagger(most, seed))
        if "DAgger of imitation" in wanted:
            add("DAgger of imitation", given.labels, peer(given.imitation, "dagger", most, seed))
        for labels in (*given.labels, *given.more) if "cloning" in wanted else ():
            shared = folder / f"{seed}-{labels}"
            add("cloning", [labels], ours_clone(shown, labels, given.updates, seed, shared))
            if "cloning of imitation" in wanted:
                more = ["--updates", str(given.updates), "--demonstrations", str(shared / "agent.npz")]
                add("cloning of imitation", [labels], peer(given.imitation, "bc", labels, seed, *more))
        enough = 0.95 * statistics.mean(returns)
        result = {
            "command": " ".join(["python", *sys.argv]),
            "commit": commit(),
            "expert": round(statistics.mean(returns), 4),
            "labels_to_95": {arm: needed(arms[arm], enough) for arm in ARMS if arm in arms},
            "arms": {arm: arms[arm] for arm in ARMS if arm in arms},
            **({} if kept is None else {"kept": {"arms": sorted(set(arms) - set(wanted)), **kept}}),
        }
        given.out.write_text(json.dumps(result, indent=1) + "\n")
        given.out.with_suffix(".png").write_bytes(draw(result))
    print(json.dumps(result["labels_to_95"], indent=1))


if __name__ == "__main__":
    main()
