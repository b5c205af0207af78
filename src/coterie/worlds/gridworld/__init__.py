"""Multi-agent grid world with the modes cooperative, competitive, meet and race."""

from coterie.worlds.gridworld.world import Gridworld, GridworldSettings, best_return, parallel_env, single_env

__all__ = ["Gridworld", "GridworldSettings", "best_return", "parallel_env", "single_env"]
