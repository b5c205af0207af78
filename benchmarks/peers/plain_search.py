"""A tree search as tutorials write it: dictionaries keyed by the board's bytes, recursion, one network call per leaf.

Prints one JSON line.
"""

import argparse
import json
import math
import time
from typing import Any

import numpy as np
from small_network import small_network


def winner(board: Any, row: int, column: int) -> bool:
    player = board[row, column]
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        run = 1
        for sign in (1, -1):
            r, c = row + sign * down, column + sign * right
            while 0 <= r < 6 and 0 <= c < 7 and board[r, c] == player:
                run, r, c = run + 1, r + sign * down, c + sign * right
        if run >= 4:
            return True
    return False


class Tree:
    """Boards are seen by the player to move: 1 own, −1 the other's."""

    def __init__(self, evaluate: Any, c: float = 1.25) -> None:
        self.evaluate, self.c = evaluate, c
        self.q, self.n_edge, self.n_node, self.prior, self.ended = {}, {}, {}, {}, {}

    def search(self, board: Any, over: Any) -> float:
        key = board.tobytes()
        if over is not None:
            return -over
        if key not in self.prior:
            legal = board[0] == 0
            prior, value = self.evaluate(board)
            prior = prior * legal
            self.prior[key] = prior / prior.sum(), legal
            self.n_node[key] = 0
            return -value
        prior, legal = self.prior[key]
        best, action = -math.inf, -1
        for a in range(7):
            if legal[a]:
                n = self.n_edge.get((key, a), 0)
                score = self.q.get((key, a), 0.0) + self.c * prior[a] * math.sqrt(self.n_node[key] + 1) / (1 + n)
                if score > best:
                    best, action = score, a
        row = int((board[:, action] == 0).sum()) - 1
        after = board.copy()
        after[row, action] = 1
        over = -1.0 if winner(after, row, action) else 0.0 if not (after[0] == 0).any() else None
        value = self.search(-after, over)
        n = self.n_edge.get((key, action), 0)
        self.q[key, action] = (self.q.get((key, action), 0.0) * n + value) / (n + 1)
        self.n_edge[key, action] = n + 1
        self.n_node[key] += 1
        return -value


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=("numpy", "torch"), default="numpy")
    parser.add_argument("--simulations", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random = np.random.default_rng(args.seed)
    network, spent = small_network(args.network, args.width, random), 0.0

    def evaluate(board: Any) -> Any:
        nonlocal spent
        start = time.perf_counter()
        out = network(np.concatenate([board == 1, board == -1]).astype(np.float32).ravel())
        chances = np.exp(out[:7] - out[:7].max())
        spent += time.perf_counter() - start
        return chances / chances.sum(), float(np.tanh(out[7]))

    starts = []
    for _ in range(64):
        board = np.zeros((6, 7), np.int8)
        for column in random.integers(0, 7, 4):
            board[int((board[:, column] == 0).sum()) - 1, column] = 1
            board = -board
        starts.append(board)
    moves, begin, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < args.seconds:
        tree = Tree(evaluate)
        for _ in range(args.simulations + 1):
            tree.search(starts[moves % 64], None)
        moves += 1
    elapsed, cpu = time.perf_counter() - begin, time.process_time() - cpu
    print(json.dumps({
        "simulations_per_second": moves * args.simulations / elapsed,
        "simulations_per_cpu_second": moves * args.simulations / cpu,
        "network_share": spent / elapsed,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
