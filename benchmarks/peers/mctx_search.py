"""mctx on Connect Four: Gumbel or PUCT search with a small network, compiled by JAX on the CPU.

Prints one JSON line. Run in an environment with jax and mctx; see `make bench-search`.
"""

import argparse
import json
import resource
import time
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np


def has_four(stones: Any) -> Any:
    """Whether a board [6, 7] of booleans has four in a line."""
    found = jnp.zeros((), bool)
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        rows, columns = 6 - 3 * down, 7 - 3 * abs(right)
        first = 3 if right < 0 else 0
        line = jnp.ones((rows, columns), bool)
        for i in range(4):
            r, c = i * down, first + i * right
            line &= stones[r : r + rows, c : c + columns]
        found |= line.any()
    return found


def step(board: Any, action: Any) -> Any:
    """Play in a board [2, 6, 7] seen by the player to move; returns the next one, reward and whether it is over."""
    taken = board.any(axis=0)
    row = 5 - taken[:, action].sum()
    own = board[0].at[row, action].set(True)
    won = has_four(own)
    over = won | (taken.sum() == 41)
    return jnp.stack([board[1], own]), jnp.where(won, 1.0, 0.0), over


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--method", choices=("gumbel", "puct"), default="gumbel")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--simulations", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random = np.random.default_rng(args.seed)
    sizes = [84, args.width, args.width, 8]
    weights = [jnp.asarray(random.normal(0, 1 / np.sqrt(a), (a, b)), jnp.float32) for a, b in pairwise(sizes)]

    def network(weights: Any, board: Any) -> Any:
        h = board.reshape(len(board), -1).astype(jnp.float32)
        for weight in weights[:-1]:
            h = jax.nn.relu(h @ weight)
        out = h @ weights[-1]
        return out[:, :7], jnp.tanh(out[:, 7])

    def recurrent(weights: Any, key: Any, action: Any, embedding: Any) -> Any:
        board, over = embedding
        after, reward, ends = jax.vmap(step)(board, action)
        after = jnp.where(over[:, None, None, None], board, after)
        logits, value = network(weights, after)
        logits = jnp.where(after.any(axis=1)[:, 0], -1e9, logits)
        done = over | ends
        output = mctx.RecurrentFnOutput(
            reward=jnp.where(over, 0.0, reward),
            discount=jnp.where(done, 0.0, -1.0),
            prior_logits=logits,
            value=jnp.where(done, 0.0, value),
        )
        return output, (after, done)

    @jax.jit
    def search(weights: Any, key: Any, board: Any) -> Any:
        logits, value = network(weights, board)
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=(board, jnp.zeros(len(board), bool)))
        invalid = board.any(axis=1)[:, 0]
        if args.method == "gumbel":
            found = mctx.gumbel_muzero_policy(weights, key, root, recurrent, args.simulations, invalid)
        else:
            found = mctx.muzero_policy(weights, key, root, recurrent, args.simulations, invalid)
        return found.action

    play = jax.jit(jax.vmap(lambda board, action: step(board, action)[0]))
    boards = jnp.zeros((args.batch, 2, 6, 7), bool)
    for _ in range(4):
        boards = play(boards, jnp.asarray(random.integers(0, 7, args.batch)))
    key = jax.random.PRNGKey(0)
    search(weights, key, boards).block_until_ready()
    searches, begin, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < args.seconds:
        key, draw = jax.random.split(key)
        search(weights, draw, boards).block_until_ready()
        searches += 1
    elapsed, cpu = time.perf_counter() - begin, time.process_time() - cpu
    print(json.dumps({
        "simulations_per_second": searches * args.batch * args.simulations / elapsed,
        "simulations_per_cpu_second": searches * args.batch * args.simulations / cpu,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
