"""Run programs that a language model wrote, isolated by the operating system.

`run(source)` returns a `Verdict`. The checker of an answer stays outside: a program never sees what is expected of it.
See `docs/guides/sandbox.md`.
"""

from coterie.sandbox.execute import MECHANISMS, live_mechanism, run, run_many
from coterie.sandbox.verdict import Limits, SandboxUnavailable, Status, Verdict

__all__ = ["MECHANISMS", "Limits", "SandboxUnavailable", "Status", "Verdict", "live_mechanism", "run", "run_many"]
