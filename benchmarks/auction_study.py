"""Bids of bidders with different risk preferences, trained at one table, or trained separately and then matched.

    python benchmarks/auction_study.py --only neutral-2 mixed-1+1 apart-1+1 --seeds 5 --runs runs/auction-study

Trains what is not there yet, goes on with what was stopped, and writes arm by arm: `auction-study.json` (every arm's
numbers beside the oracle's, with 95% intervals over seeds, its command and the commit) and `auction-study-ARM.png`
(bid curves). `key=value` words go to every training. Arms `neutral-N`, `pair` and `ppo-2` (two bidders by other means),
`grid-L` (two bidders with L bids),
`cpt-N` and `mixed-P+M` (P prospect theorists, M neutral bidders) learn at their own table. `apart-P+M` seats
bidders of `cpt-N` and `neutral-N` of the same seed at one table, without further learning; its numbers come from their
curves, and beside them, in money, from playing.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from interleave import commit

import coterie
from coterie.core.types import Array
from coterie.preferences.prospect import NEUTRAL
from coterie.runs.run import Run
from coterie.studies.auction import metrics
from coterie.studies.auction.report import draw_summary
from coterie.studies.match.match import Player
from coterie.training import build
from coterie.training.evaluate import evaluate, evaluation_envs
from coterie.training.loop import evaluation_seed

SPLITS = [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (3, 1)]  # prospect theorists and neutral bidders at one table
SHOWN = [0.25, 0.5, 0.75, 0.9]  # valuations
PLAYED = 65_536  # auctions of a cross-check, for each seed


def seats(prospects: int, neutrals: int) -> tuple[list[str], list[str]]:
    """The seats of a mixed table."""
    agents = [f"bidder_{i}" for i in range(prospects + neutrals)]
    return agents[:prospects], agents[prospects:]


def mixed(prospects: int, neutrals: int) -> list[str]:
    """The overrides of a mixed table."""
    ours, theirs = (f"[{','.join(side)}]" for side in seats(prospects, neutrals))
    bidders = f"world.num_bidders={prospects + neutrals}"
    return [bidders, f"groups.prospect.agents={ours}", f"groups.neutral.agents={theirs}"]


ARMS: dict[str, tuple[str, list[str]]] = {  # arm -> experiment, overrides
    **{f"neutral-{n}": ("auction-neutral", [f"world.num_bidders={n}"]) for n in (2, 3, 4, 5)},
    "pair": ("auction-pair", []),
    "ppo-2": ("auction-ppo", []),
    **{f"grid-{n}": ("auction-grid", [f"world.bid_levels={n}"]) for n in (11, 21)},
    **{f"cpt-{n}": ("auction-cpt", [f"world.num_bidders={n}"]) for n in (2, 3, 4)},
    **{f"mixed-{p}+{m}": ("auction-mixed", mixed(p, m)) for p, m in SPLITS},
}
APART = {f"apart-{p}+{m}": (p, m) for p, m in SPLITS}


def train(arm: str, options: argparse.Namespace) -> list[Run]:
    """The runs of all seeds, trained or finished if need be."""
    experiment, overrides = ARMS[arm]
    runs = []
    for seed in range(options.seeds):
        out = Path(options.runs) / arm / f"seed={seed}"
        if (out / "config.yaml").exists():
            coterie.resume(out, quiet=True)
        else:
            words = ["train.video=false", "train.tensorboard=false", *overrides, f"seed={seed}", *options.overrides]
            coterie.train(experiment, words, out=out, quiet=True)
        runs.append(Run.open(out))
        if runs[-1].summary() is None:
            raise SystemExit(f"{out} was stopped; the same command goes on with it")
    return runs


def learn(arm: str, options: argparse.Namespace) -> dict[str, Any]:
    """The numbers of an arm that learns at its own table."""
    experiment, overrides = ARMS[arm]
    runs = train(arm, options)
    benchmark, tables = metrics.evaluate_runs(runs)
    command = " ".join(["coterie train", experiment, *overrides, *options.overrides, "seed=S"])
    head = {"command": command, "wall_s": [(run.summary() or {})["wall_s"] for run in runs], "bids": bids_of(runs)}
    return head | metrics.summarise(benchmark, tables)


def bids_of(runs: list[Run]) -> dict[str, Any]:
    """What each group's first bidder bids at a few valuations, seed by seed."""
    tables = [coterie.load(run.path, "last") for run in runs]
    seen = np.array(SHOWN, np.float32)[:, None]
    first = {group.name: group.actor.group_spec.agents[0] for group in tables[0].groups}
    rows = {name: np.array([table.act(agent, seen) for table in tables]) for name, agent in first.items()}
    levels = tables[0].config.world.settings.bid_levels  # 0: bids are numbers
    bids = {name: found / (levels - 1) if levels else found[..., 0] for name, found in rows.items()}
    return {"valuations": SHOWN} | {name: found.astype(float).tolist() for name, found in bids.items()}


def match(arm: str, options: argparse.Namespace) -> dict[str, Any]:
    """The numbers of bidders who were trained among their own kind and meet the others."""
    prospects, neutrals = APART[arm]
    bidders = prospects + neutrals
    ours, theirs = train(f"cpt-{bidders}", options), train(f"neutral-{bidders}", options)
    config = ours[0].config()
    (group,) = config.groups.values()
    members = {"prospect": range(prospects), "neutral": range(prospects, bidders)}
    risks = {"prospect": metrics.risk_of(group.preference), "neutral": NEUTRAL}
    benchmark = metrics.make_benchmark(config.world.settings, members, risks)
    tables, played = [], []
    for one, other in zip(ours, theirs, strict=True):
        bidders = metrics.learned_bid_functions(one)[:prospects] + metrics.learned_bid_functions(other)[prospects:]
        tables.append(metrics.evaluate_bidders(benchmark, bidders))
        played.append(play(one, other, prospects, neutrals, options.episodes))
    check = {name: told([row[name] for row in played]) for name in played[0]}
    head = {"command": f"python benchmarks/auction_study.py --only {arm}", "played": options.episodes}
    return head | metrics.summarise(benchmark, tables) | {"played_money": check}


def play(one: Run, other: Run, prospects: int, neutrals: int, episodes: int) -> dict[str, float]:
    """The mean payoffs of both sides, and how often the highest wins, in auctions that are really held."""
    world = build.build_world(one.config().world, evaluation_envs(episodes))
    sides = seats(prospects, neutrals)
    players = [Player(str(run.path), coterie.load(run.path, "last")) for run in (one, other)]
    seated = [p.actor(agent, world, 0) for p, side in zip(players, sides, strict=True) for agent in side]
    result = evaluate(world, seated, episodes, evaluation_seed(0))

    def mean(side: list[str]) -> float:
        paid: list[Array] = [result.returns[agent] for agent in side]
        return float(sum(one.mean() for one in paid) / len(paid))

    won = {} if result.success is None else {"highest_wins": float(result.success.mean())}
    return {"prospect": mean(sides[0]), "neutral": mean(sides[1])} | won


def told(numbers: list[float]) -> dict[str, Any]:
    """A mean with its interval over seeds."""
    found = metrics.estimate(numbers)
    assert found is not None  # all of them are known
    return found.to_dict() | {"seeds": numbers}


def rounded(found: Any) -> Any:
    """Six digits are plenty."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [rounded(value) for value in found]
    return round(found, 6) if isinstance(found, float) else found


def show(arm: str, found: dict[str, Any]) -> None:
    """The main numbers of an arm, a line for each group."""
    revenue = found["auction"]["learned"]["revenue"]["value"]
    equilibrium = (found["auction"]["equilibrium"] or {}).get("revenue", float("nan"))
    print(f"{arm:12} revenue {revenue:.4f} (equilibrium {equilibrium:.4f})")
    for name, group in found["groups"].items():
        words = []
        for metric in ("l2_distance", "weighted_best_response_gap", "utility_loss", "regret", "payoff", "utility"):
            one = group["learned"][metric]
            words.append(f"{metric} {'–' if one is None else format(one['value'], '.4f')}")
        print(f"  {name:10} {'  '.join(words)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("overrides", nargs="*", help="key=value, for every training")
    parser.add_argument("--only", nargs="+", choices=[*ARMS, *APART], default=[*ARMS, *APART], metavar="ARM")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", default="runs/auction-study")
    parser.add_argument("--out", default="docs/results")
    parser.add_argument("--episodes", type=int, default=PLAYED, help="auctions of a cross-check, for each seed")
    parser.add_argument("--commit", help="that trained them, if they were there already")
    options = parser.parse_intermixed_args()
    options.commit = options.commit or commit()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    file = out / "auction-study.json"
    for arm in options.only:
        found = {"commit": options.commit, **(learn if arm in ARMS else match)(arm, options)}
        (out / f"auction-study-{arm}.png").write_bytes(draw_summary(rounded(found)))
        study = json.loads(file.read_text()) if file.exists() else {}  # read again: arms may be run side by side
        merged = {name: found if name == arm else study.get(name) for name in (*ARMS, *APART)}
        kept = {name: one for name, one in merged.items() if one is not None}
        file.write_text(json.dumps(rounded(kept), indent=1) + "\n")
        show(arm, found)


if __name__ == "__main__":
    main()
