"""How many labels DAgger and behavioural cloning need on DoorKey-8x8, beside those of the package `imitation`.

    python benchmarks/dagger.py --seeds 5 --imitation .venv-imitation/bin/python

An expert's label is one decision. Cloning reads that many decisions of the scripted expert's own episodes; DAgger has
the decisions labelled that its student meets. Both packages clone the same episodes. All have a network of 2 × 128
and about as many gradient steps per label (DAgger) or in all (cloning), of 64 labels each: 100 for 128 labels, or 400
in the arms `400 steps`; β of both DAggers falls linearly to 0 at 15% of the labels. `augmented` arms learn with the
settings of `expert.py`'s clones, which `imitation` does not have: mirror images, decisions without the window of the
map, noise, more weight decay. Scores are mean returns of 200 episodes of greedy play that nobody learned from.
DAgger's curve is one run. Our rounds have 128 labels, those of `imitation` whole episodes with 128 or more, so that
its score at n labels is interpolated between the rounds before and after; with fewer labels than the first round has,
it is that of the first round. `rounds` has its curves. `leads` are differences of means to `imitation` at the same
labels, with 95% intervals over seeds (Welch's).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from interleave import HERE, commit, measure
from scipy.stats import ttest_ind

import coterie
from coterie.algorithms.imitation import demonstrations
from coterie.algorithms.imitation.demonstrations import Demonstrations
from coterie.studies import figures
from coterie.studies.demonstrate.record import DemonstrationSpec, record
from coterie.studies.statistics import Estimate

EXPERIMENT = "doorkey-expert-ppo"
PLAIN = ["world.size=8", "train.video=false", "train.tensorboard=false", "train.evaluate_episodes=200"]
LABEL = "{name: policy, policy: expert, use: {mode: label, until: 0.15}}"
LEARNER = "groups.agent.learner"
LEAST = 10  # decisions that an episode of the expert has in the mean, at least
DOORKEY = "coterie.worlds.doorkey.augmentation"
AUGMENTED = (f"augmentations=[{DOORKEY}:mirror, {DOORKEY}:hide_window]", "noise=0.2", "weight_decay=0.3")
LONG = ", 400 steps"
DAGGERS: dict[str, tuple[int, tuple[str, ...]]] = {  # gradient steps per round, settings of the learner
    "DAgger": (100, ()),
    "DAgger, augmented": (100, AUGMENTED),
    f"DAgger, augmented{LONG}": (400, AUGMENTED),
}
PEERS = {"DAgger of imitation": 100, f"DAgger of imitation{LONG}": 400}  # gradient steps per 128 labels
ARMS = [
    *(f"DAgger, augmented{LONG}", f"DAgger of imitation{LONG}"),
    *("DAgger, augmented", "DAgger", "DAgger of imitation"),
    *("cloning, augmented", "cloning", "cloning of imitation"),
]
PAIRS = {  # for `leads`
    arm: (arm, f"{arm.split(',')[0]} of imitation{LONG if arm.endswith(LONG) else ''}")
    for arm in ARMS
    if "imitation" not in arm
}
PAIRS["cloning, augmented, against DAgger"] = ("cloning, augmented", "DAgger of imitation")
Curve = list[list[float]]  # labels and mean return


def demonstrate(most: int, seed: int, folder: Path) -> Demonstrations:
    """Episodes of the expert with at least so many decisions, others for every seed."""
    return record(DemonstrationSpec(EXPERIMENT, "expert", most // LEAST, seed), folder, ["world.size=8"])[0]


def save_episodes(shown: Demonstrations, labels: int, folder: Path) -> Demonstrations:
    """As many whole episodes as have at most these labels, also written to the folder."""
    chosen = shown.select(range(int(np.searchsorted(shown.starts, labels, side="right")) - 1))
    demonstrations.save(folder, [chosen])
    return chosen


def ours_clone(
    shown: Demonstrations, labels: int, updates: int, seed: int, folder: Path, more: Sequence[str] = ()
) -> Curve:
    """Behavioural cloning of as many whole episodes as have at most these labels; `more`: settings of the learner."""
    shown = save_episodes(shown, labels, folder)
    words = [f"seed={seed}", f"{LEARNER}.validation=0", f"train.total_steps={64 * updates}"]
    words += [f"{LEARNER}.{word}" for word in more]
    run = coterie.clone(EXPERIMENT, [folder], [*PLAIN, *words, "train.evaluate_every=10000"], quiet=True, out=None)
    return [[len(shown.action), score(run.summary()["last"])]]


def ours_dagger(labels: int, seed: int, updates: int, more: Sequence[str] = ()) -> Curve:
    """DAgger: 128 labels and so many gradient steps per iteration; `more`: settings of the learner."""
    words = [f"{LEARNER}={{name: dagger, updates: {updates}}}", f"groups.agent.advisor={LABEL}", f"seed={seed}"]
    words += [f"{LEARNER}.{word}" for word in more]
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
    """The score at these labels: between two rounds interpolated, outside them that of the nearest one."""
    return float(np.interp(labels, [count for count, _ in curve], [value for _, value in curve]))


def needed(scores: dict[int, list[float]], enough: float) -> int | None:
    """The least number of labels from which on the mean over seeds is good enough; None: never."""
    found = None
    for labels in sorted(scores, reverse=True):
        if statistics.mean(scores[labels]) < enough:
            break
        found = labels
    return found


def leads(arms: dict[str, dict[int, list[float]]]) -> dict[str, dict[int, list[float]]]:
    """By how much our arms lead those of `imitation` at the same labels: the mean and a 95% interval."""
    found: dict[str, dict[int, list[float]]] = {}
    for pair, (arm, peer_arm) in PAIRS.items():
        for labels in sorted(set(arms.get(arm, {})) & set(arms.get(peer_arm, {}))):
            mine, theirs = arms[arm][labels], arms[peer_arm][labels]
            if min(len(mine), len(theirs)) > 1:
                between = ttest_ind(mine, theirs, equal_var=False).confidence_interval()
                lead = [np.mean(mine) - np.mean(theirs), between.low, between.high]
                found.setdefault(pair, {})[labels] = [round(float(number), 4) for number in lead]
    return found


def draw(result: dict[str, Any]) -> bytes:
    """Mean return by labels, with the range over seeds; the same method of `imitation` is dashed."""
    arms, lines = result["arms"], []
    peers = {arm.replace(" of imitation", ""): arm for arm in arms if " of imitation" in arm}
    colours = {
        arm: figures.colour(number) for number, arm in enumerate(arm for arm in arms if arm not in peers.values())
    }
    colours |= {arm: colours.get(method, colours.get(f"DAgger, augmented{LONG}", "")) for method, arm in peers.items()}
    for arm, scores in arms.items():
        mean, least, most = (np.array([of(found) for found in scores.values()]) for of in (np.mean, np.min, np.max))
        x, line = np.array([int(count) for count in scores]), Estimate(mean, least, most)
        lines.append(figures.Series(arm, colours[arm], x, line, dash=int(" of imitation" in arm)))
    goal = figures.Reference("95% of the expert", 0.95 * result["expert"], threshold=True)
    chart = figures.Chart("DoorKey 8 × 8", "labels by the expert", "mean return", tuple(lines), (goal,), share=True)
    return figures.chart_as_png(chart)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--labels", type=int, nargs="+", default=[128, 256, 384, 512, 768, 1024, 1536, 2048])
    parser.add_argument("--more", type=int, nargs="*", default=[], help="more labels for cloning")
    parser.add_argument("--updates", type=int, default=1600, help="gradient steps of cloning, of 64 labels each")
    parser.add_argument("--imitation", help="the Python of an environment with the package `imitation`")
    parser.add_argument("--out", type=Path, default=Path("docs/results/dagger.json"))
    parser.add_argument("--resume", action="store_true", help="keep what the file has, measure what is missing")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS, help="others keep what the file has of them")
    given = parser.parse_args()
    folder, most = Path(tempfile.mkdtemp()), max(given.labels)
    arms: dict[str, dict[int, list[float]]] = {}
    wanted = [arm for arm in given.arms if given.imitation or "imitation" not in arm]
    before = json.loads(given.out.read_text()) if given.out.exists() else {"arms": {}}
    for arm, found in before["arms"].items():
        if given.resume or (arm not in wanted and given.arms != ARMS):
            arms[arm] = {int(labels): scores for labels, scores in found.items()}
    made = {arm: {name: before.get(name) for name in ("command", "commit")} for arm in arms} | before.get("made", {})
    earlier = [arm for arm in ARMS if arm in arms]  # arms with figures of earlier commands
    rounds: dict[str, Curve] = before.get("rounds", {}) if "DAgger of imitation" in earlier else {}

    def missing(arm: str, seed: int, counts: Sequence[int]) -> list[int]:
        """The numbers of labels at which an arm has no score of this seed yet; none where the arm is not wanted."""
        held = arms.get(arm, {})
        return [n for n in counts if arm in wanted and len(held.get(n, [])) <= seed - given.first_seed]

    def add(arm: str, counts: Sequence[int], curve: Curve) -> None:
        for labels in counts:
            arms.setdefault(arm, {}).setdefault(labels, []).append(round(at(curve, labels), 4))
        print(arm, arms[arm], file=sys.stderr, flush=True)

    returns: list[float] = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        shown = demonstrate(max(given.labels + given.more), seed, folder / f"expert-{seed}")
        returns += [one.returns["agent"][0] for one in shown.episodes]
        for arm, (updates, more) in DAGGERS.items():
            if counts := missing(arm, seed, given.labels):
                add(arm, counts, ours_dagger(most, seed, updates, more))
        for arm, updates in PEERS.items():
            if counts := missing(arm, seed, given.labels):
                curve = peer(given.imitation, "dagger", most, seed, "--updates-per-label", str(updates / 128))
                rounds[f"{seed}{LONG if arm.endswith(LONG) else ''}"] = curve
                add(arm, counts, curve)
        for labels in (*given.labels, *given.more):
            shared = folder / f"{seed}-{labels}"
            for arm, settings in (("cloning", ()), ("cloning, augmented", AUGMENTED)):
                if missing(arm, seed, [labels]):
                    add(arm, [labels], ours_clone(shown, labels, given.updates, seed, shared, settings))
            if missing("cloning of imitation", seed, [labels]):
                save_episodes(shown, labels, shared)
                words = ["--updates", str(given.updates), "--demonstrations", str(shared / "agent.npz")]
                add("cloning of imitation", [labels], peer(given.imitation, "bc", labels, seed, *words))
        enough = 0.95 * statistics.mean(returns)
        result = {
            "command": " ".join(["python", *sys.argv]),
            "commit": commit(),
            "expert": round(statistics.mean(returns), 4),
            "leads": leads(arms),
            "labels_to_95": {arm: needed(arms[arm], enough) for arm in ARMS if arm in arms},
            "arms": {arm: dict(sorted(arms[arm].items())) for arm in ARMS if arm in arms},
            "rounds": rounds,
            "made": {arm: made[arm] for arm in earlier},
        }
        given.out.write_text(json.dumps(result, indent=1) + "\n")
        given.out.with_suffix(".png").write_bytes(draw(result))
    print(json.dumps(result["labels_to_95"], indent=1))


if __name__ == "__main__":
    main()
