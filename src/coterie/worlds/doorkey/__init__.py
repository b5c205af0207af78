"""Door-key tasks with MiniGrid's rules as a native batch: a small view, a map of what was seen, and skills."""

from coterie.worlds.doorkey.world import DoorKey, DoorKeySettings, parallel_env, single_env

__all__ = ["DoorKey", "DoorKeySettings", "parallel_env", "single_env"]
