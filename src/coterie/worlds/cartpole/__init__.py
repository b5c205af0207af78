"""CartPole-v1 as a native batch."""

from coterie.worlds.cartpole.world import CartPole

__all__ = ["CartPole"]
