"""OpenSpiel's tree search on Connect Four: its Python search with a small network, or its C++ search with random games.

Prints one JSON line. Run in an environment with open_spiel; see `make bench-search`.
"""

import argparse
import json
import time
from typing import Any

import numpy as np
import pyspiel
from open_spiel.python.algorithms import mcts
from small_network import small_network


class NetworkEvaluator(mcts.Evaluator):
    """Priors and values of a perceptron with random weights, like the one that the others call.

    The search asks for a position's value and, at its next visit, for its prior: outputs are kept until the next move.
    """

    def __init__(self, kind: str, width: int, random: Any) -> None:
        self.network = small_network(kind, width, random)
        self.seconds, self.known = 0.0, dict[str, Any]()

    def _run(self, state: Any) -> Any:
        moves = state.history_str()
        if moves not in self.known:
            start = time.perf_counter()
            seen = np.asarray(state.observation_tensor()[:84], np.float32)  # both players' stones
            self.known[moves] = self.network(seen)
            self.seconds += time.perf_counter() - start
        return self.known[moves]

    def evaluate(self, state: Any) -> Any:
        value = float(np.tanh(self._run(state)[-1]))
        return np.array([value, -value] if state.current_player() == 0 else [-value, value])

    def prior(self, state: Any) -> Any:
        legal = state.legal_actions()
        logits = self._run(state)[legal]
        chances = np.exp(logits - logits.max())
        return list(zip(legal, chances / chances.sum()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("python", "c++"), default="python")
    parser.add_argument("--network", choices=("numpy", "torch"), default="numpy")
    parser.add_argument("--simulations", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    game, random = pyspiel.load_game("connect_four"), np.random.RandomState(args.seed)
    evaluator = NetworkEvaluator(args.network, args.width, random)
    if args.kind == "python":
        bot = mcts.MCTSBot(game, 1.25, args.simulations, evaluator, random_state=random,
                           child_selection_fn=mcts.SearchNode.puct_value)  # fmt: skip
    else:
        rollouts = pyspiel.RandomRolloutEvaluator(1, 0)
        bot = pyspiel.MCTSBot(game, rollouts, 1.25, args.simulations, 64, False, 0, False)
    starts = []
    for _ in range(64):
        state = game.new_initial_state()
        for column in random.randint(0, 7, 4):
            state.apply_action(int(column))
        starts.append(state)
    bot.step(starts[0].clone())  # warms up
    evaluator.seconds, moves, begin, cpu = 0.0, 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < args.seconds:
        evaluator.known.clear()
        bot.step(starts[moves % 64].clone())
        moves += 1
    elapsed, cpu = time.perf_counter() - begin, time.process_time() - cpu
    print(json.dumps({
        "simulations_per_second": moves * args.simulations / elapsed,
        "simulations_per_cpu_second": moves * args.simulations / cpu,
        "network_share": evaluator.seconds / elapsed if args.kind == "python" else 0.0,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
