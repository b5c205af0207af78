"""Writes tables into the pages: results from docs/results, the tree of files from the source.

    python docs/tools/tables.py            # rewrite every table that is not current
    python docs/tools/tables.py --check    # name the pages that are not current, and fail

A table stands in a page between `<!-- table: NAME ARGUMENTS -->` and `<!-- end table -->`; `TABLES` maps names to the
functions below.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from coterie.config import schema
from coterie.training.evaluate import wilson

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "docs" / "results"
EXPERIMENTS = ROOT / "src" / "coterie" / "experiments"
BLOCK = re.compile(r"(<!-- table: ([^\n]*?) -->\n)(.*?)(<!-- end table -->)", re.S)

DOOR_KEY = ("doorkey5", "doorkey8", "simple-doorkey", "colored-doorkey", "lava-doorkey", "two-door")
FAMILIES = {
    "Grid world": (
        *("gridworld-cooperative", "gridworld-meet", "gridworld-race", "gridworld-competitive", "gridworld-iql"),
    ),
    "Door and key": DOOR_KEY,
    "Classic control": (
        *("cartpole-ppo", "cartpole-dqn", "lunarlander-ppo", "lunarlander-continuous-ppo", "lunarlander-dqn"),
        *("pendulum-sac", "lunarlander-continuous-sac"),
    ),
    "Particle worlds": ("spread-ippo", "spread-mappo", "spread-qmix", "spread-maddpg", "tag-ppo", "tag-maddpg"),
    "Board games": ("tictactoe-alphazero", "connect-four-alphazero", "othello6-alphazero"),
    "Imitation": ("lunarlander-continuous-bc", "doorkey-expert", "doorkey-expert-ppo"),
    "Auctions": ("auction-pair", "auction-neutral", "auction-ppo", "auction-grid", "auction-cpt", "auction-mixed"),
    "Language models": (
        *("gridworld-lm", "gridworld-lm-lora", "cartpole-lm-head", "gridworld-instructed", "gridworld-advised"),
        *("doorkey5-ppo", "doorkey5-shaped", "lavagap-constrained"),
    ),
    "Teams of language models": tuple(
        f"{task}-{kind}"
        for task in ("plan-path", "sokoban", "sudoku", "math", "code")
        for kind in ("shared", "separate", "adapters", *(["smollm"] if task != "code" else []))
    ),
    "Teachers": (
        *("doorkey5-teacher", "doorkey8-teacher", "simple-doorkey-teacher", "colored-doorkey-teacher"),
        *("lava-doorkey-teacher", "two-door-teacher", "spread-teacher", "gridworld-teacher"),
    ),
}
CONDITIONS = re.compile(r"GPL|MPL|EPL|CDDL|LicenseRef")  # licences that ask for more than a notice
OLDER_CODE: tuple[str, ...] = ()  # results of an algorithm that has changed since
AUCTIONS = {  # experiment -> its arms in auction-study.json
    "auction-pair": ("pair",),
    "auction-neutral": ("neutral-2", "neutral-3", "neutral-4", "neutral-5"),
    "auction-ppo": ("ppo-2",),
    "auction-grid": ("grid-11",),
    "auction-cpt": ("cpt-2", "cpt-3", "cpt-4"),
    "auction-mixed": ("mixed-1+1", "mixed-1+2", "mixed-2+1", "mixed-1+3", "mixed-2+2", "mixed-3+1"),
}


def read(name: str) -> Any:
    """One file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def known(name: str) -> bool:
    """Whether there are results of an experiment, in the form that `benchmarks/learning.py` writes."""
    path = RESULTS / f"{name}.json"
    return path.is_file() and isinstance(read(name).get("seeds"), list)


def shipped(name: str) -> schema.Config:
    """An experiment as it is in this tree."""
    return schema.load(EXPERIMENTS / f"{name}.yaml")


def age(name: str) -> str:
    """A mark for results that the shipped experiment would not give again: "", older settings, or older code."""
    result, train = read(name), shipped(name).train
    steps = train.iterations * train.iteration_steps
    recorded = result.get("settings")  # not every file of results has them
    if result["env_steps"] != steps or (recorded is not None and recorded != schema.read(EXPERIMENTS / f"{name}.yaml")):
        return f" (older settings; now {thousands(steps)})"
    return " (older code)" if name in OLDER_CODE else ""


def described(name: str) -> str:
    """The first line of an experiment's file."""
    return (EXPERIMENTS / f"{name}.yaml").read_text().splitlines()[0].removeprefix("# ")


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def number(value: float | None, digits: int = 1) -> str:
    """A number with a true minus sign; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def thousands(value: float) -> str:
    """A count, such as 1,003,520."""
    return f"{value:,.0f}"


def per_seed(value: Any) -> list[float]:
    return [float(one) for one in value["seeds"]]


# Scores of experiments ----------------------------------------------------------------------------------


def returns(result: dict[str, Any], which: str, group: str) -> list[float]:
    """The returns of one group over seeds; [] where that player was not measured."""
    return [seed[which]["return_mean"][group] for seed in result["seeds"] if which in seed]


def score_rows(names: Iterable[str], digits: int = 1) -> Iterable[list[str]]:
    """For each experiment and group: trained, expert, random, step 0."""
    for name in names:
        result = read(name)
        which = "last" if shipped(name).train.best == "last" else "best"
        for group in result["seeds"][0]["best"]["return_mean"]:
            trained = returns(result, which, group)
            others = []
            for player in ("expert", "random", "step_0"):
                found = returns(result, player, group)
                others.append(number(statistics.mean(found), digits) if found else "–")
            title = f"`{name}`" + (f", {group}" if len(result["seeds"][0]["best"]["return_mean"]) > 1 else "")
            spread = ", ".join(number(one, digits) for one in trained)
            steps = thousands(result["env_steps"]) + age(name)
            yield [title, steps, number(statistics.mean(trained), digits), *others, spread]


def scores(*names: str) -> str:
    """Held-out greedy returns of experiments, seed by seed, beside expert, random and untrained play."""
    head = ("experiment", "steps", "trained, mean", "expert (scripted)", "random", "step 0", "trained, seed by seed")
    return markdown(head, score_rows(names))


def auctions(*names: str) -> str:
    """Distance to equilibrium and utility loss of learned bidders."""
    study = read("auction-study")
    rows = []
    for name in names:
        for arm in AUCTIONS[name]:
            for group, data in study[arm]["groups"].items():
                learned = data["learned"]
                title = f"`{name}`, {arm}" + (f", {group}" if len(study[arm]["groups"]) > 1 else "")
                rows.append(
                    [
                        title,
                        number(statistics.mean(per_seed(learned["l2_distance"])), 4),
                        ", ".join(number(one, 4) for one in per_seed(learned["l2_distance"])),
                        f"{max(per_seed(learned['utility_loss'])):.2%}",
                        f"{min(study[arm]['wall_s']):.0f} s" if "wall_s" in study[arm] else "–",
                    ]
                )
    return markdown(
        (
            "experiment, arm",
            "L2 to equilibrium, mean",
            "seed by seed",
            "utility loss, worst seed",
            "time, fastest seed",
        ),
        rows,
    )


MEETINGS = {
    "two neutral (`auction-pair`)": "pair",
    "two prospect theorists (`auction-cpt`)": "cpt-2",
    "one of each, trained together (`auction-mixed`)": "mixed-1+1",
    "one of each, trained apart, then matched": "apart-1+1",
}


def meetings() -> str:
    """Revenue, payoffs and efficiency of tables of two bidders, with 95% intervals over seeds."""
    study = read("auction-study")
    rows = []
    for title, arm in MEETINGS.items():
        data, groups = study[arm]["auction"], study[arm]["groups"]
        payoffs = {
            one["risk_preference"] == "risk-neutral": _interval(one["learned"]["payoff"]) for one in groups.values()
        }
        theory = number(data["equilibrium"]["revenue"], 3) if data.get("equilibrium") and arm != "apart-1+1" else ""
        wins = f"{data['learned']['highest_wins']['value']:.1%}"
        rows.append(
            [title, _interval(data["learned"]["revenue"]), theory, payoffs.get(False, ""), payoffs.get(True, ""), wins]
        )
    head = (
        "table",
        "revenue",
        "in theory",
        "prospect theorist's payoff",
        "neutral bidder's payoff",
        "highest valuation wins",
    )
    return markdown(head, rows)


def revenues() -> str:
    """Revenue by the number of prospect theorists at a table, theory in brackets."""
    study = read("auction-study")
    rows = []
    for bidders in (3, 4):
        arms = [f"neutral-{bidders}", *(f"mixed-{n}+{bidders - n}" for n in range(1, bidders)), f"cpt-{bidders}"]
        data = [study[arm]["auction"] for arm in arms]
        cells = [f"{one['learned']['revenue']['value']:.3f} ({one['equilibrium']['revenue']:.3f})" for one in data]
        rows.append([f"of {bidders} bidders", *cells, *[""] * (5 - len(cells))])
    return markdown(("prospect theorists", "0", "1", "2", "3", "4"), rows)


def _interval(data: dict[str, Any]) -> str:
    low, high = data["interval"]
    return f"{data['value']:.3f} [{low:.3f}, {high:.3f}]"


def instructed() -> str:
    """Success of a policy that reads instructions, by list of sentences."""
    data = read("gridworld-instructed")
    expert = data["expert"]
    lists = ("train", "held_out", "relational")
    rows = []
    for title, arm in (
        ("reads the words", "words"),
        ("reads the sentence's number", "number"),
        ("reads neither", "nothing"),
    ):
        for way, word in (("greedy", "greedy"), ("drawn", "stochastic")):
            cells = [", ".join(f"{seed[way][one]:.1%}" for seed in data[arm]) for one in lists]
            rows.append([f"{title}, {word}", *cells])
    rows.append(["expert (scripted)", *(f"{expert[one]:.1%}" for one in lists)])
    rows.append(["random", *(f"{data['random'][one]:.1%}" for one in lists)])
    return markdown(("success, seed by seed", "training sentences", "held-out sentences", "relational sentences"), rows)


def advised() -> str:
    """Environment steps until 90% of the expert's return, with and without advice."""
    data = read("gridworld-advised")
    rows = []
    for arm, seeds in data["arms"].items():
        steps = [seed["steps_to_threshold"] for seed in seeds]
        calls = [seed.get("advice/lm/calls") for seed in seeds]
        asked = ", ".join(f"{call:.0f}" for call in calls if call is not None) or "–"
        mean = "–" if None in steps else thousands(statistics.mean(steps))
        last = thousands(max(row["curve"][-1][0] for row in seeds))
        each = [f"not after {last}" if one is None else thousands(one) for one in steps]
        rows.append([arm, mean, ", ".join(each), asked])
    return markdown(("arm", "steps to 90% of the expert, mean", "seed by seed", "model calls"), rows)


def taught() -> str:
    """Students of teachers and PPO alone: steps to the threshold, and scores at the end."""
    rows = []
    for task in read("teacher")["tasks"].values():
        digits = 2 if task["threshold"] < 0 else 0

        def shown(values: list[float | None], digits: int = digits) -> str:
            known = [value for value in values if value is not None]
            if not known:
                return "–"
            middle = statistics.mean(known)
            return number(middle, digits) if digits else f"{middle:.0%}"

        for arm, found in task["arms"].items():
            seeds = found["seeds"]
            reached = [seed["steps_to_threshold"] for seed in seeds]
            rows.append(
                [
                    f"{task['title']}, {arm}",
                    f"{sum(one is not None for one in reached)}/{len(reached)}",
                    thousands(found["median_steps"]),
                    ", ".join("–" if one is None else f"{one / 1000:.0f}" for one in reached),
                    number(found.get("ratio"), 2),
                    shown([seed["last"]["greedy"] for seed in seeds]),
                    shown([seed["baselines"].get("teacher") for seed in seeds]),
                    shown([seed["step_0"]["greedy"] for seed in seeds]),
                    shown([seed["baselines"]["random"] for seed in seeds]),
                ]
            )
    head = ("task and arm", "reach it", "steps to threshold, median", "seed by seed, in thousands", "of PPO alone")
    return markdown((*head, "student at the end", "teacher alone", "step 0", "random"), rows)


def doorkey() -> str:
    """Frames to 90% success in the door-key world, with and without shaping."""
    data = read("doorkey5-shaped")
    rows = []
    for arm, name in (("unshaped", "doorkey5-ppo"), ("shaped", "doorkey5-shaped")):
        frames = [seed["frames_to_threshold"] for seed in data["arms"][arm]]
        each = ", ".join(f"{one / 1000:.1f}" for one in frames)
        rows.append([f"`{name}`", thousands(statistics.mean(frames)), thousands(statistics.median(frames)), each])
    return markdown(("experiment", "frames to 90% success, mean", "median", "seed by seed, in thousands"), rows)


def ablations(base: str, threshold: str) -> str:
    """What is left of DQN without one of its improvements."""
    data = read(f"ablations-{base}")
    rows = []
    for one in data["variants"]:
        low, high = one["iqm"]["interval"]
        (world,) = one["frames_to_threshold"].values()
        median = world.get("median")
        rows.append(
            [
                f"`{one['label'].removeprefix('ablations/')}`",
                f"{number(one['iqm']['value'])} [{number(low)}, {number(high)}]",
                number(one["area_under_curve"]["value"]),
                f"{world['reached']} of {one['seeds']}",
                "not reached" if median is None else thousands(median),
            ]
        )
    head = ("experiment", "held-out return, IQM [95%]", "area under the curve", f"reached {threshold}", "median steps")
    return markdown(head, rows)


def match_matrix() -> str:
    """Cross-play of the competitive grid world."""
    data = read("gridworld-competitive-match")
    names = ["learned", "random", "expert (scripted)"]
    rows = []
    for name, cells in zip(names, data["matrix"], strict=True):
        shown = []
        for cell in cells:
            low, high = cell["return_ci95"]
            shown.append(f"{number(cell['return_mean'])} ± {number((high - low) / 2)}")
        rows.append([name, *shown])
    return markdown(("return of", *(f"against {name}" for name in names)), rows)


# Peers ----------------------------------------------------------------------------------------------------


def peers() -> str:
    """Speed and scores beside other libraries, one row for each comparison."""
    rows = []
    for title, file, world in (
        ("PPO, CartPole-v1", "bench-ppo", "CartPole-v1"),
        ("PPO, LunarLander-v3", "bench-ppo", "LunarLander-v3"),
        ("DQN, CartPole-v1", "bench-dqn", "CartPole-v1"),
    ):
        data = read(file)
        ours, theirs = (data[world]["measured"][name] for name in ("coterie", "stable-baselines3"))
        rows.append(
            _peer(
                title,
                "Stable-Baselines3",
                ours["steps_per_s"],
                theirs["steps_per_s"],
                ours["return_100"],
                theirs["return_100"],
            )
        )
    sac = read("bench-sac")["Pendulum-v1"]["measured"]
    ours, theirs = sac["coterie"], sac["stable-baselines3"]
    speeds = (ours["steps_per_s"], theirs["steps_per_s"])
    rows.append(_peer("SAC, Pendulum-v1", "Stable-Baselines3", *speeds, ours["greedy"], theirs["greedy"]))
    spread = read("bench-spread")["medians"]
    for title, peer, our_name, their_name in (
        ("IPPO, simple_spread", "RLlib", "coterie ippo", "rllib ppo"),
        ("MAPPO, simple_spread", "BenchMARL", "coterie mappo", "benchmarl mappo"),
    ):
        ours, theirs = spread[our_name], spread[their_name]
        speeds = (ours["agent_steps_per_s"], theirs["agent_steps_per_s"])
        rows.append(_peer(title, peer, *speeds, ours["return_mean"], theirs["return_mean"]))
    maddpg = read("bench-maddpg")["all"]
    speeds = [statistics.median(one["agent_steps_per_s"] for one in maddpg[name]) for name in ("coterie", "benchmarl")]
    means = [statistics.mean(one["score"] for one in maddpg[name]) for name in ("coterie", "benchmarl")]
    rows.append(_peer("MADDPG, simple_spread", "BenchMARL", *speeds, *means))
    head = ("task", "peer", "Coterie, steps/s", "peer, steps/s", "ratio", "Coterie, return", "peer, return")
    return markdown(head, rows)


def _peer(title: str, peer: str, ours: float, theirs: float, our_return: float, their_return: float) -> list[str]:
    ratio = f"{ours / theirs:.0f}×" if ours / theirs >= 10 else f"{ours / theirs:.1f}×"
    return [title, peer, thousands(ours), thousands(theirs), ratio, number(our_return), number(their_return)]


def measured(file: str, world: str) -> str:
    """One benchmark of a single-agent algorithm: speed, return and memory of every library."""
    data = read(file)[world]["measured"]
    ours = data["coterie"]["steps_per_s"]
    rows = [
        [
            name,
            thousands(one["steps_per_s"]),
            f"{ours / one['steps_per_s']:.1f}×",
            number(one["return_100"]),
            f"{one['memory_mb']:.0f} MB",
        ]
        for name, one in data.items()
    ]
    return markdown((world, "steps/s", "Coterie is", "return, last 100 episodes", "memory"), rows)


def spread_peers() -> str:
    """simple_spread with learning beside RLlib and BenchMARL."""
    data = read("bench-spread")["medians"]
    ours = data["coterie ippo"]["agent_steps_per_s"]
    rows = [
        [
            name,
            thousands(one["agent_steps_per_s"]),
            f"{ours / one['agent_steps_per_s']:.1f}×",
            number(one["return_mean"], 2),
        ]
        for name, one in data.items()
    ]
    return markdown(("variant", "agent-steps/s", "Coterie IPPO is", "return"), rows)


def maddpg_peers() -> str:
    """MADDPG beside BenchMARL: scores and speed."""
    data = read("bench-maddpg")["all"]
    rows = []
    titles = {
        "coterie": "Coterie, `spread-maddpg`",
        "autograd": "the same, `policy.compiled=false`",
        "benchmarl": "BenchMARL",
    }
    for title, name in ((title, name) for name, title in titles.items() if name in data):
        scored = [one["score"] for one in data[name]]
        speed = statistics.median(one["agent_steps_per_s"] for one in data[name])
        each = ", ".join(number(one, 2) for one in scored)
        rows.append([title, number(statistics.mean(scored), 2), each, thousands(speed)])
    return markdown(("variant", "return, mean", "seed by seed", "agent-steps/s, median"), rows)


def sac_peers() -> str:
    """SAC beside Stable-Baselines3: speed, and greedy scores at equal steps."""
    data, rows = read("bench-sac"), []
    for world in ("Pendulum-v1", "LunarLander-v3"):
        ours = data[world]["measured"]["coterie"]["steps_per_s"]
        for name, one in data[world]["measured"].items():
            found = ", ".join(number(each["greedy"]) for each in data[world]["all"][name])
            ratio = f"{ours / one['steps_per_s']:.1f}×"
            rows.append(
                [f"{world}, {thousands(data[world]['steps'])}", name, thousands(one["steps_per_s"]), ratio, found]
            )
    return markdown(("task, steps", "library", "steps/s", "Coterie is", "greedy return, seed by seed"), rows)


def populations() -> str:
    """Population-based training beside plain Optuna and AgileRL: held-out scores of every study, and differences."""
    data = read("bench-pbt")
    titles = {
        "pbt": "`--sampler pbt`",
        "tpe": "plain Optuna (TPE, no pruning)",
        "agilerl": "AgileRL, evolutionary search",
    }
    rows = []
    for name, found in data["scores"].items():
        gap = data["differences"].get(f"pbt - {name}")
        shown = "–"
        if gap is not None:
            low, high = gap["ci95"]
            shown = f"{number(gap['mean'])} [{number(low)}, {number(high)}]"
        each = ", ".join(number(score) for score in found)
        rows.append([titles[name], number(data["means"][name]), each, shown])
    return markdown(("search", "held-out return, mean", "study by study", "pbt is better by [95% interval]"), rows)


def replay_peers() -> str:
    """Prioritised sampling beside other libraries."""
    data = read("bench-replay")["measured"]
    rows = [[name, thousands(one["samples_per_s"]), thousands(one["cycles_per_s"])] for name, one in data.items()]
    return markdown(("library", "batches/s, rows and weights", "batches/s, with gathering and write-back"), rows)


def gpu() -> str:
    """PPO with a convolutional policy on pixels: CPU against one GPU."""
    data = read("gpu-pixels")
    rows = []
    for name in ("cpu", "cuda"):
        one = data[name]
        title = f"{one['threads']} CPU threads" if "threads" in one else one["machine"]
        speeds = (one["steps_per_s"], one["steps_per_s_playing"], one["steps_per_s_learning"])
        rows.append([title, *(thousands(speed) for speed in speeds)])
    return markdown(("device", "steps/s", "playing alone", "learning alone"), rows)


def demonstrated(size: str) -> str:
    """PPO from scratch and from clones of demonstrations on DoorKey: every seed beside the median and the mean."""

    def share(values: list[float | None]) -> str:
        known = [value for value in values if value is not None]
        return f"{statistics.mean(known):.0%}" if known else "–"

    def lost(curves: list[dict[str, list[float]]]) -> str:
        """Points of success below step 0 at the worst, on validation episodes."""
        each = [100 * max(one["success"][0] - min(one["success"][1:]), 0) for one in curves]
        return ", ".join(f"{points:.0f}" for points in each)

    def median(frames: list[int | None]) -> str:
        middle = sorted(frames, key=lambda count: float("inf") if count is None else count)[len(frames) // 2]
        return "never" if middle is None else thousands(middle)

    rows = []
    for name, arm in read(f"expert-doorkey-{size}")["arms"].items():
        seeds = arm["seeds"]
        frames = [one["frames_to_90"] for one in seeds]
        rows.append(
            [
                name,
                share([one["step_0"] for one in seeds]),
                share([one.get("step_0_drawn") for one in seeds]),
                lost(arm["curves"]),
                share([one.get("lowest_drawn") for one in seeds]),
                f"{statistics.mean(one['greedy'] for one in seeds):.0%}",
                ", ".join(f"{100 * one['greedy']:.0f}" for one in seeds),
                median(frames),
                ", ".join("–" if count is None else f"{count / 1000:.0f}" for count in frames),
                median([one["frames_to_90_drawn"] for one in seeds]),
            ]
        )
    head = ("arm", "step 0, mean", "drawn", "lost later, points", "lowest drawn", "at the end, mean", "seed by seed, %")
    return markdown((*head, "frames to 90%, median", "in thousands", "drawn, median"), rows)


def handed_over(algorithm: str = "PPO") -> str:
    """What ways to go on with a clone lose at first."""
    rows = []
    for way in ways_of(algorithm):
        seeds = way["seeds"]
        rows.append(
            [
                f"{way['size']} × {way['size']}, {way['arm']}",
                f"`{way['way']}`",
                " ".join(f"`{word}`" for word in way["learner"]) or "–",
                ", ".join(f"{100 * one['step_0']:.0f}" for one in seeds),
                ", ".join(f"{100 * one['lost']:.0f}" for one in seeds),
                ", ".join(f"{100 * one['last']:.0f}" for one in seeds),
                ", ".join("–" if one["frames_to_90"] is None else f"{one['frames_to_90'] / 1000:.0f}" for one in seeds),
            ]
        )
    head = ("policy", "way", f"{algorithm} differs by", "step 0, %", "lost, in points, seed by seed", "at the end, %")
    return markdown((*head, "frames to 90%, in thousands"), rows)


def ways_of(algorithm: str) -> list[dict[str, Any]]:
    """The hand-overs to an algorithm; files name it where it is not PPO."""
    return [way for way in read("hand-over")["ways"] if way.get("algorithm", "PPO") == algorithm]


def first_evaluations(algorithm: str = "PPO") -> str:
    """Greedy success at step 0 and in the ten evaluations after the hand-over, mean of the seeds."""
    rows = []
    for way in ways_of(algorithm):
        curves = [[one["step_0"], *one["first"]] for one in way["seeds"]]
        what = f"{way['size']} × {way['size']}, {way['arm']}: {way['way']}"
        means = [statistics.mean(values) for values in zip(*curves, strict=True)]
        rows.append([" ".join([what, *(f"`{word}`" for word in way["learner"])]), *(f"{100 * m:.0f}" for m in means)])
    frames = (f"{512 * number:,}" for number in range(1, 11))
    return markdown(("greedy success in %, after so many frames", "0", *frames), rows)


def labelled() -> str:
    """Mean returns of cloning and DAgger by labels, and the labels that 95% of the expert's return takes."""
    data = read("dagger")
    counts = [int(count) for count in next(iter(data["arms"].values()))]
    rows = []
    for arm, scores in data["arms"].items():
        means = [statistics.mean(scores[str(count)]) for count in counts]
        needed = data["labels_to_95"][arm]
        rows.append([arm, *(f"{mean:.2f}" for mean in means), "more" if needed is None else thousands(needed)])
    return markdown(("arm", *(f"{thousands(count)} labels" for count in counts), "labels to 95%"), rows)


def label_leads() -> str:
    """By how much our arms lead those of `imitation` at the same labels, with 95% intervals over seeds."""
    data = read("dagger")["leads"]
    counts = list(next(iter(data.values())))
    rows = [
        [arm, *("{:+.2f} [{:+.2f}, {:+.2f}]".format(*found[count]).replace("-", "−") for count in counts)]
        for arm, found in data.items()
    ]
    return markdown(("arm", *(f"{thousands(int(count))} labels" for count in counts)), rows)


def attacks() -> str:
    """The verdict on every attack by each mechanism."""
    data = read("bench-sandbox")["attacks"]
    rows = [[name, *(by[name] for by in data.values())] for name in next(iter(data.values()))]
    return markdown(("attack", *data), rows)


def sandbox_speed() -> str:
    """Programs per second."""
    data = read("bench-sandbox")["speed"]
    return markdown(("", *next(iter(data.values()))), [[name, *map(str, by.values())] for name, by in data.items()])


def task_baselines() -> str:
    """Success of random characters, of guesses in the right form and of the scripted solver in every text task."""
    data = read("task-baselines")["worlds"]
    players = [name for name in next(iter(data.values())) if name != "world"]

    def shown(one: dict[str, Any]) -> str:
        low, high = one["success_ci95"]
        return f"{one['success_rate']:.1%} [{100 * low:.0f}, {100 * high:.0f}]"

    rows = [
        [name, str(by[players[0]]["instances"]), *(shown(by[player]) for player in players)]
        for name, by in data.items()
    ]
    return markdown(("task", "distinct instances", *players), rows)


# The gallery ----------------------------------------------------------------------------------------------

PEERS = {  # experiment -> a sentence about a peer
    "cartpole-ppo": lambda: _beside("bench-ppo", "CartPole-v1"),
    "lunarlander-ppo": lambda: _beside("bench-ppo", "LunarLander-v3"),
    "cartpole-dqn": lambda: _beside("bench-dqn", "CartPole-v1"),
    "spread-ippo": lambda: _beside_spread("coterie ippo", "rllib ppo", "RLlib"),
    "spread-mappo": lambda: _beside_spread("coterie mappo", "benchmarl mappo", "BenchMARL"),
    "spread-maddpg": lambda: _beside_maddpg(),
}


def _beside(file: str, world: str) -> str:
    data = read(file)
    ours, theirs = (data[world]["measured"][name] for name in ("coterie", "stable-baselines3"))
    settings = "with equal settings" if file == "bench-ppo" else "each with settings that suit it,"
    return (
        f"Peer: {settings} after {thousands(data['steps'])} steps Stable-Baselines3's last 100 training episodes "
        f"return {number(theirs['return_100'])}, Coterie's {number(ours['return_100'])}."
    )


def _beside_spread(ours: str, theirs: str, peer: str) -> str:
    data = read("bench-spread")
    return (
        f"Peer: after {thousands(data['steps'])} steps at equal settings {peer} returns "
        f"{number(data['medians'][theirs]['return_mean'])}, Coterie {number(data['medians'][ours]['return_mean'])}."
    )


def _beside_maddpg() -> str:
    data = read("bench-maddpg")
    ours, theirs = (statistics.mean(one["score"] for one in data["all"][name]) for name in ("coterie", "benchmarl"))
    return (
        f"Peer: after {thousands(data['steps'])} steps BenchMARL's MADDPG returns {number(theirs)}, Coterie's "
        f"{number(ours)} (each with settings that suit it; greedy, means of {data['rounds']} seeds)."
    )


def gallery() -> str:
    """Every experiment: description, command, scores, peer and curve."""
    parts, drawn = [], set[Path]()
    for family, names in FAMILIES.items():
        parts.append(f"## {family}\n")
        for name in names:
            parts.append(f"### {name}\n\n{described(name)}\n\n```sh\ncoterie train {name}\n```\n")
            parts.append(_scored(name))
            if name in PEERS:
                parts.append(PEERS[name]() + "\n")
            parts.append(_curve(name, drawn))
    return "\n".join(part for part in parts if part)


def _scored(name: str) -> str:
    special = {"gridworld-instructed": instructed, "gridworld-advised": advised, "doorkey5-shaped": doorkey}
    if known(name):
        return scores(name)
    if name in AUCTIONS:
        return auctions(name)
    if name in TAUGHT:
        return student(name)
    if name in TEAMS:
        return team(name)
    if name in SMOLLM:
        return smollm(SMOLLM[name])
    if name in BOARDS:
        return BOARDS[name]()
    if name in CLONED:
        return cloned(CLONED[name])
    return special[name]() if name in special else ELSEWHERE.get(name, "Not measured.\n")


ELSEWHERE = {
    "doorkey5-ppo": "Its scores are listed with those of `doorkey5-shaped`, below.\n",
    "simple-doorkey": "No file of results; one seed is described in "
    "[Door and key](guides/doorkey.md#what-ppo-learns-alone).\n",
    "lavagap-constrained": "No file of results; two seeds are described in "
    "[Rules in words](guides/constraints.md#the-lava-gap).\n",
}

# Experiments that a study has trained: experiment -> task and arm of teacher.json.
TAUGHT = {
    **{name: (name, "PPO alone") for name in ("doorkey5", "doorkey8", "two-door")},
    **{f"{name}-doorkey": (name, "PPO alone") for name in ("colored", "lava")},
    **{f"{name}-teacher": (name, "teacher") for name in ("doorkey5", "doorkey8", "two-door", "spread")},
    **{f"{name}-doorkey-teacher": (name, "teacher") for name in ("colored", "lava")},
}
TEAMS = {f"plan-path-{kind}": f"AT-GRPO, {kind}" for kind in ("shared", "separate", "adapters")}  # arms of its study
SMOLLM = {f"{task}-smollm": task for task in ("plan-path", "sudoku", "sokoban", "math")}  # studies on a GPU
CLONED = {"doorkey-expert": ("lm-20",), "doorkey-expert-ppo": ("scratch", "lm-20")}  # arms of expert-doorkey-5.json
PICTURES = {  # experiment -> the picture of its study
    **dict.fromkeys(TAUGHT, "teacher"),
    **dict.fromkeys(TEAMS, "teams-plan-path"),
    **dict.fromkeys(CLONED, "expert-doorkey-5"),
    "doorkey5-ppo": "doorkey5-shaped",
}


def shown(task: dict[str, Any], values: Iterable[float | None]) -> list[str]:
    """Success rates in percent, or returns of simple_spread."""
    return ["–" if one is None else number(one, 2) if task["threshold"] < 0 else f"{one:.0%}" for one in values]


def student_row(name: str) -> list[str]:
    """Steps, score at the end, expert, random and step 0 of an experiment with or without a teacher: means."""
    which, arm = TAUGHT[name]
    task = read("teacher")["tasks"][which]
    seeds = task["arms"][arm]["seeds"]
    steps = statistics.mean(seed["env_steps"] for seed in seeds)
    last, start = ([seed[moment]["greedy"] for seed in seeds] for moment in ("last", "step_0"))
    others = [[seed["baselines"][player] for seed in seeds] for player in ("expert", "random")]
    return [f"`{name}`", thousands(steps), *shown(task, map(statistics.mean, (last, *others, start)))]


def student(name: str) -> str:
    """A student, or PPO alone: the score at the end beside expert, random, step 0 and the teacher."""
    which, arm = TAUGHT[name]
    task = read("teacher")["tasks"][which]
    found = task["arms"][arm]
    teachers = [seed["baselines"].get("teacher") for seed in found["seeds"]]
    taught = None not in teachers
    row = student_row(name) + (shown(task, [statistics.mean(teachers)]) if taught else [])
    row += [", ".join(shown(task, [seed["last"]["greedy"] for seed in found["seeds"]])), _median_steps(found)]
    unit = "return" if task["threshold"] < 0 else "success"
    threshold = number(task["threshold"], 1) if task["threshold"] < 0 else f"{task['threshold']:.0%}"
    head = ["experiment", "steps, mean", f"{unit} at the end, mean", "expert (scripted)", "random", "step 0"]
    head += (["teacher alone"] if taught else []) + ["seed by seed", f"steps to {threshold}, median"]
    note = "" if taught else "A run ends early once two evaluations in a row have reached 90%.\n\n"
    older = "The texts of this teacher have changed since ([why](guides/teacher.md#what-it-reaches)).\n\n"
    return note + (older if which == "spread" else "") + markdown(head, [row])


def _median_steps(found: dict[str, Any]) -> str:
    half = len(found["seeds"]) / 2
    return "not reached" if found["never_reached"] > half else thousands(found["median_steps"])


def team_row(name: str) -> list[str]:
    """Tokens, success at the end, solver, random and step 0 of a team of tiny models: means."""
    results = [one for one in read("teams-plan-path")["results"] if one["arm"] == TEAMS[name]]
    means = (statistics.mean(one[key] for one in results) for key in ("success", "expert", "random", "step_0"))
    tokens = statistics.mean(one["tokens"] for one in results)
    return [f"`{name}`", f"{tokens / 1e6:.1f}M tokens", *(f"{mean:.1%}" for mean in means)]


def team(name: str) -> str:
    """A team of tiny models on Plan-Path: success in test instances beside solver, random, guesses and step 0."""
    results = [one for one in read("teams-plan-path")["results"] if one["arm"] == TEAMS[name]]
    guess = statistics.mean(one["guess"] for one in results)
    each = ", ".join(f"{one['success']:.1%}" for one in results)
    head = (
        "experiment",
        "trained on",
        "success, mean",
        "solver (scripted)",
        "random",
        "step 0",
        "guess",
        "seed by seed",
    )
    note = "Success in 200 test instances; training starts from a clone of the solver ([how](guides/at-grpo.md)).\n\n"
    return note + markdown(head, [[*team_row(name), f"{guess:.1%}", each]])


def smollm(task: str) -> str:
    """Teams of a pretrained model on one GPU: success in validation and test instances, run by run."""
    rows = []
    for one in read("teams-gpu")["results"]:
        if one["study"].startswith(task):
            baselines = one.get("baselines") or {}
            tested = [one.get("test_step_0"), one.get("test"), *(baselines.get(k) for k in ("expert", "guess"))]
            (_, _, before), (tokens, _, after) = one["validation"][0], one["validation"][-1]
            numbers = ["–" if value is None else f"{value:.1%}" for value in (before, after, *tested)]
            label = f"{one['study']}: {one['arm']}, seed {one['seed']}, {one.get('commit', '–')}"
            rows.append([label, f"{tokens / 1e6:.1f}M", *numbers])
    head = ("study, arm, seed, commit", "tokens", "validation, step 0", "trained", "test, step 0", "trained")
    note = "One H200; success run by run. Settings differ between commits: [Teams on a GPU](guides/teams-gpu.md).\n\n"
    return note + markdown((*head, "solver (scripted)", "guess"), rows)


GPU_STUDIES = {
    "plan-path-5": "Plan-Path 5×5",
    "plan-path-10": "Plan-Path 10×10",
    "sudoku-4": "Sudoku 4×4, 8 blanks",
    "sokoban-1": "Sokoban, one box",
    "math": "math, two digits",
}


def teams_gpu(seed: str = "0") -> str:
    """Arms of the studies on one GPU: test success with 95% intervals, tokens and minutes."""
    rows = []
    for one in read("teams-gpu")["results"]:
        if one["seed"] != int(seed):
            continue
        (_, _, before), (_, _, after) = one["validation"][0], one["validation"][-1]
        tested = [shown_success(one[key]) for key in ("test_step_0", "test")]
        guess = f"{one['baselines']['guess']:.1%}" if one["baselines"] else "–"
        amounts = [f"{one['warm_up']:,}", f"{one['tokens'] / 1e6:.2f}M", f"{one['seconds'] / 60:.1f}"]
        title = GPU_STUDIES[one["study"]]
        rows.append([title, one["arm"], *amounts, f"{before:.1%}", f"{after:.1%}", *tested, guess])
    head = ("task", "arm", "warm-up answers", "tokens", "minutes", "validation, step 0", "trained")
    return markdown((*head, "test, step 0", "trained [95%]", "guess"), rows)


def teams_gpu_sizes() -> str:
    """AT-GRPO with one model for all roles against the size of its warm start, seed 0."""
    found = [one for one in read("teams-gpu")["results"] if one["seed"] == 0 and one["arm"] == "AT-GRPO, shared"]
    rows = []
    for study, title in GPU_STUDIES.items():
        sizes = sorted((one for one in found if one["study"] == study), key=lambda one: one["warm_up"])
        for one in sizes if len(sizes) > 1 else []:
            tested = [shown_success(one[key]) for key in ("test_step_0", "test")]
            rows.append([title, f"{one['warm_up']:,}", *tested, f"{one['last']['eval/turns']:.2f}"])
    return markdown(
        ("task", "demonstrated answers", "warm start [95%]", "after AT-GRPO [95%]", "turns at the end"), rows
    )


def teams_gpu_arms() -> str:
    """Test success of every arm on one GPU before and after training, a row for each task and size of warm start.

    The sizes are the largest one that all arms have and the largest of all.
    """
    found = [one for one in read("teams-gpu")["results"] if one["seed"] == 0 and one["arm"] != "untrained"]
    arms = list(dict.fromkeys(one["arm"] for one in found))
    rows = []
    for study, title in GPU_STUDIES.items():
        rates = {(one["arm"], one["warm_up"]): one for one in found if one["study"] == study}
        sizes = [{size for arm, size in rates if arm == name} for name in arms]
        common = max(set.intersection(*(size for size in sizes if size)))
        for size in sorted({common, max(size for _, size in rates)}):
            shown = [rates.get((name, size)) for name in arms]
            steps = ["–" if one is None else f"{one['test_step_0']:.1%} → {one['test']:.1%}" for one in shown]
            rows.append([title, f"{size:,}", *steps])
    return markdown(("task", "warm-up answers", *arms), rows)


def teams_gpu_seeds() -> str:
    """Arms that were trained from several seeds with the same size of warm start: test success seed by seed."""
    seeds: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for one in read("teams-gpu")["results"]:
        if one["test"] is not None:
            seeds.setdefault((one["study"], one["arm"], one["warm_up"]), []).append(one)
    rows = []
    for (study, arm, size), found in seeds.items():
        if len(found) > 1:
            shown = [", ".join(f"{one[key]:.1%}" for one in found) for key in ("test_step_0", "test")]
            mean = statistics.mean(one["test"] for one in found)
            rows.append([GPU_STUDIES[study], arm, f"{size:,}", *shown, f"{mean:.1%}"])
    head = ("task", "arm", "warm-up answers", "warm starts, seed by seed", "trained, seed by seed", "mean")
    return markdown(head, rows)


def shown_success(rate: float | None, instances: int = 200) -> str:
    if rate is None:
        return "–"
    low, high = wilson(rate * instances, instances)
    return f"{rate:.1%} [{low:.0%}, {high:.0%}]"


def cloned(arms: tuple[str, ...]) -> str:
    """DoorKey 5×5 from clones of 20 planned episodes, or from scratch: success before and after PPO."""
    titles = {"scratch": "from scratch", "lm-20": "from a clone of 20 episodes that the embedded model planned"}
    rows = []
    for arm in arms:
        seeds = read("expert-doorkey-5")["arms"][arm]["seeds"]
        row = [titles[arm]]
        for moment in ("step_0", "greedy"):
            found = [one[moment] for one in seeds]
            row += [f"{statistics.mean(found):.0%}", ", ".join(f"{one:.0%}" for one in found)]
        rows.append(row)
    head = ("start", "success at step 0, mean", "seed by seed", "success after PPO, mean", "seed by seed")
    note = "At step 0 a clone plays as `coterie clone` left it; then PPO goes on with it "
    return f"{note}([Experts](guides/expert.md)).\n\n" + markdown(head, rows)


PLAYERS = ("search", "network alone", "untrained search", "search by random games", "random")


def tictactoe() -> str:
    """Optimal moves in all positions of tic-tac-toe."""
    runs = read("tictactoe-alphazero")["runs"]
    rows = [[name, *(f"{one['optimal'][player]:.1%}" for player in PLAYERS)] for name, one in runs.items()]
    positions = next(iter(runs.values()))["positions"]
    return f"Optimal moves in all {thousands(positions)} positions:\n\n" + markdown(("run", *PLAYERS), rows)


def connect_four() -> str:
    """Moves that keep the exact value of a position, and games against alpha-beta."""
    data = read("connect-four-alphazero")
    runs = {"2 CPU cores": data["cpu, again"]["strength"], "one H200": data["one H200"]["curve"][-1]}
    opponent = "against alpha-beta of depth 4"
    rows = [
        [
            name,
            thousands(one["env_steps"]),
            *(f"{one['keeps the value'][player]:.1%}" for player in PLAYERS),
            *(_games(one[f"{opponent}, {side}, after 2 random moves"]) for side in ("first", "second")),
        ]
        for name, one in runs.items()
    ]
    note = "Moves that keep the exact value of 1,000 positions with 64 simulations, and games won–drawn–lost "
    head = ("run", "steps", *PLAYERS, "alpha-beta, moving first", "second")
    return f"{note}{opponent} after two random moves:\n\n" + markdown(head, rows)


def othello() -> str:
    """Games of Othello against alpha-beta of depth 4."""
    rows = []
    for machine, run in read("othello6-alphazero").items():
        for one in run["strength"]:
            for player in PLAYERS[:-1]:
                if f"{player}, first" in one:
                    found = [_games(one[f"{player}, {side}"]) for side in ("first", "second")]
                    settings = [str(one["simulations"]), str(one["opening"]), player]
                    rows.append([f"{machine}, {thousands(one['env_steps'])}", *settings, *found])
    note = "Games won–drawn–lost against alpha-beta of depth 4:\n\n"
    return note + markdown(("run, steps", "simulations", "random moves", "player", "moving first", "second"), rows)


def _games(found: dict[str, int]) -> str:
    return f"{found['won']}–{found['drawn']}–{found['lost']}"


BOARDS = {"tictactoe-alphazero": tictactoe, "connect-four-alphazero": connect_four, "othello6-alphazero": othello}


def _curve(name: str, drawn: set[Path]) -> str:
    """The picture of an experiment; a picture of several experiments is shown once, then linked."""
    file = RESULTS / f"{PICTURES.get(name, name)}.png"
    if name in AUCTIONS:
        file = RESULTS / f"auction-study-{AUCTIONS[name][0]}.png"
    if not file.is_file():
        return ""
    if file in drawn:
        return f"Its curve is in [{file.name}](results/{file.name}), shown above.\n"
    drawn.add(file)
    of = f"the study {file.stem}" if name in PICTURES else name
    return f"![Learning curves of {of}](results/{file.name})\n"


def summary() -> str:
    """All experiments with scores of the same kind in one table."""
    head = ("experiment", "steps", "trained, mean", "expert (scripted)", "random", "step 0")
    rows = []
    for name in (name for family in FAMILIES.values() for name in family):
        found = (
            list(score_rows([name]))
            if known(name)
            else [student_row(name)]
            if name in TAUGHT
            else [team_row(name)]
            if name in TEAMS
            else []
        )
        rows += [[f"[{row[0].strip('`').replace('`', '')}](#{_anchor(row[0])})", *row[1:6]] for row in found]
    return markdown(head, rows)


def _anchor(title: str) -> str:
    return title.split("`")[1]


# The source -----------------------------------------------------------------------------------------------

ORDER = (
    *("core", "nn", "preferences", "worlds", "lm", "policies", "advice", "algorithms", "config", "runs", "training"),
    *("video", "studies", "app", "sandbox", "testing", "cli", "experiments"),
)


def tree() -> str:
    """Every package and file with the first sentence of its docstring."""
    source = ROOT / "src" / "coterie"
    lines = ["```text", "src/coterie/"]
    packages = sorted((p for p in source.iterdir() if (p / "__init__.py").is_file()), key=_place)
    for file in sorted(source.glob("*.py")):
        if file.name != "__init__.py":
            lines.append(_line(file, 2))
    for package in packages:
        lines += _branch(package, 2)
    lines += ["  experiments/              one YAML file per experiment, differences from the defaults only", "```"]
    return "\n".join(lines)


def _place(package: Path) -> tuple[int, str]:
    return (ORDER.index(package.name) if package.name in ORDER else len(ORDER), package.name)


def _branch(package: Path, depth: int) -> list[str]:
    lines = [_line(package / "__init__.py", depth, f"{package.name}/")]
    for file in sorted(package.glob("*.py")):
        if file.name != "__init__.py":
            lines.append(_line(file, depth + 2))
    for inner in sorted(one for one in package.iterdir() if (one / "__init__.py").is_file()):
        lines += _branch(inner, depth + 2)
    return lines


def _line(file: Path, depth: int, name: str = "") -> str:
    text = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].replace("\n", " ")
    sentence = text.removesuffix(".")
    if len(text) > 110:  # its first sentence; a full stop after "et al" does not end one
        sentence = re.split(r"(?<=[a-z)`])(?<!et al)[.;] (?=\w)|\.$", text)[0]
    return f"{' ' * depth}{name or file.name:<{25 - depth}} {sentence}".rstrip()


def dependencies() -> str:
    """Every pinned package with its licence and the parts of Coterie that need it, those with conditions first."""
    bom = json.loads((ROOT / "docs" / "reference" / "sbom.cdx.json").read_text())
    rows = []
    for one in bom["components"]:
        licence = one["licenses"][0]["expression"] if "licenses" in one else "–"
        (needed,) = (known["value"] for known in one["properties"])
        rows.append(
            [f"`{one['name']}`", one["version"], f"**{licence}**" if CONDITIONS.search(licence) else licence, needed]
        )
    return markdown(("package", "version", "licence", "needed by"), sorted(rows, key=lambda row: "**" not in row[2]))


def layers() -> str:
    """Which package may import which, from the test that holds the rule."""
    parsed = ast.parse((ROOT / "tests" / "test_layers.py").read_text())
    rule = next(
        node.value
        for node in parsed.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "BELOW"
    )
    below = eval(compile(ast.Expression(rule), "test_layers.py", "eval"), {"set": set})
    rows = [
        [f"`{name}`", ", ".join(f"`{one}`" for one in ORDER if one in may) or "nothing"] for name, may in below.items()
    ]
    return markdown(("package", "may import"), [*rows, ["`cli`, `api`", "everything"]])


def worlds() -> str:
    """Third-party environments: what was tried, and what came of it."""
    rows = []
    for found in read("worlds")["environments"]:
        settings = ", ".join(f"`{key}: {json.dumps(value)}`" for key, value in found["settings"].items())
        agents = " + ".join(f"{count} {name}" for name, count in found.get("agents", {}).items())
        problem = next(
            (found[key] for key, fine in (("check", "passes"), ("training", "trains")) if found.get(key) != fine), None
        )
        outcome = "plays and trains" if problem is None else str(problem).replace("|", "/")
        speed = [thousands(found[key]) if key in found else "–" for key in ("steps_per_s", "bare_steps_per_s")]
        ratio = number(found.get("ratio"), 2)
        rows.append([f"`{found['name']}`", settings, agents, outcome, found.get("same_returns", "–"), *speed, ratio])
    head = ("environment", "settings", "agents", "outcome", "returns equal", "steps/s", "bare loop", "ratio")
    return markdown(head, rows)


TABLES: dict[str, Callable[..., str]] = {
    "teams-gpu": teams_gpu,
    "teams-gpu-arms": teams_gpu_arms,
    "teams-gpu-seeds": teams_gpu_seeds,
    "teams-gpu-sizes": teams_gpu_sizes,
    "worlds": worlds,
    "scores": scores,
    "auctions": auctions,
    "meetings": meetings,
    "revenues": revenues,
    "instructed": instructed,
    "advised": advised,
    "taught": taught,
    "doorkey": doorkey,
    "ablations": ablations,
    "match": match_matrix,
    "peers": peers,
    "measured": measured,
    "spread-peers": spread_peers,
    "maddpg-peers": maddpg_peers,
    "sac-peers": sac_peers,
    "populations": populations,
    "replay-peers": replay_peers,
    "gpu": gpu,
    "attacks": attacks,
    "demonstrated": demonstrated,
    "handed-over": handed_over,
    "first-evaluations": first_evaluations,
    "labelled": labelled,
    "label-leads": label_leads,
    "sandbox-speed": sandbox_speed,
    "task-baselines": task_baselines,
    "gallery": gallery,
    "summary": summary,
    "tree": tree,
    "layers": layers,
    "dependencies": dependencies,
}


def filled(page: str) -> str:
    """A page with all its tables written anew."""

    def write(match: re.Match[str]) -> str:
        name, *arguments = match[2].split()
        return f"{match[1]}\n{TABLES[name](*arguments).strip()}\n\n{match[4]}"

    return BLOCK.sub(write, page)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    """Rewrite the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [page for page in pages() if filled(page.read_text()) != page.read_text()]
    for page in stale:
        state = "not current; run python docs/tools/tables.py" if check else "tables written"
        print(f"{page.relative_to(ROOT)}: {state}")
        if not check:
            page.write_text(filled(page.read_text()))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
