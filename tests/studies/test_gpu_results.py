"""Results of teams on a GPU: rows of several files become one, each in the place of its like."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_teams_study.py"


def row(study, arm, seed, warm_up, test):
    """A row as docs/results keeps it."""
    return {"study": study, "arm": arm, "seed": seed, "warm_up": warm_up, "validation": [[0, 1.0, 0.5]], "test": test}


def measured(arm, seed):
    """A row as a study on another machine has it: not rounded, with scores turn by turn."""
    last = {"team/flat_groups": 0.123456, "eval/tool/unreadable": 0.0, "team/tool/turn_1/score": 1.0}
    scores = {"step_0": 0.1, "success": 0.75, "best": 0.8, "baselines": {"guess": 0.2}}
    spent = {"tokens": 1234.0, "seconds": 65.4321, "warm_up_seconds": 9.0, "curve": [(0, 1.2345, 0.1)]}
    return {"arm": arm, "seed": seed, "warm_up": 64_000, "last": last, "commands": ["coterie train …"]} | scores | spent


def add(out, *files, commit="abc1234"):
    subprocess.run([sys.executable, str(SCRIPT), "--add", *files, "--commit", commit, "--out", out], check=True)
    return json.loads(out.read_text())


def test_rows_replace_their_like_and_keep_the_others(tmp_path):
    old = [row("sudoku-4", "plain GRPO", 0, 64_000, 0.1), row("plan-path-5", "plain GRPO", 1, 32_000, 0.2)]
    new = [row("sudoku-4", "plain GRPO", 0, 64_000, 0.9), row("plan-path-5", "plain GRPO", 0, 8_000, 0.3)]
    out, more, raw = (tmp_path / f"{name}.json" for name in ("out", "more", "raw"))
    out.write_text(json.dumps({"device": "kept", "results": old}))
    more.write_text(json.dumps({"results": new}))
    raw.write_text(json.dumps({"study": "sudoku-4", "results": [measured("AT-GRPO, shared", 0)]}))
    found = add(out, more, raw)
    assert found["device"] == "kept"
    told = [(one["study"], one["arm"], one["seed"], one["warm_up"], one["test"]) for one in found["results"]]
    assert told == [
        ("plan-path-5", "plain GRPO", 0, 8_000, 0.3),
        ("plan-path-5", "plain GRPO", 1, 32_000, 0.2),
        ("sudoku-4", "plain GRPO", 0, 64_000, 0.9),
        ("sudoku-4", "AT-GRPO, shared", 0, 64_000, 0.75),
    ]
    added = found["results"][-1]
    assert (added["commit"], added["tokens"], added["seconds"]) == ("abc1234", 1234, 65)
    assert (added["test_step_0"], added["test_best"], added["validation"]) == (0.1, 0.8, [[0, 1.2, 0.1]])
    assert added["last"] == {"team/flat_groups": 0.1235, "eval/tool/unreadable": 0.0}
    assert not list(tmp_path.glob("*.lock"))
    assert add(out, more, raw) == found  # once more changes nothing
