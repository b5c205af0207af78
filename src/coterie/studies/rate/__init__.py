"""Rate runs by comparing their episodes in pairs."""
