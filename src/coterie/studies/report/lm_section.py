"""A report's section on language models: what they were asked, what that cost, what came of it, and samples in words.

Numbers are totals over all runs of a part; samples are read from a run's store of answers (`lm/ask`).
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config.schema import Part
from coterie.runs.run import Run
from coterie.studies import html
from coterie.training.language_models import ANSWERS, ROLES, find_models

QUESTIONS = "lm/questions"
COUNTED = {  # metric below lm/ -> what it counts
    "questions": "questions",
    "unanswered": "abstained",
    "remembered": "answered without a call",
    "calls": "calls",
    "prompt_tokens": "prompt tokens",
    "completion_tokens": "written tokens",
    "scored_tokens": "scored tokens",
    "cache_hits": "cache hits, in the file of answers",
    "refusals": "over budget",
    "failures": "failures",
    "seconds": "seconds",
}
SHARES = {  # other metrics of roles and policies -> what they mean, in percent, the mean of all runs
    "advice/share": "share of decisions with advice",
    "advice/agreement": "advice that the policy followed",
    "advice/abstentions": "questions without advice",
    "advice/optimal": "advice that was optimal",
}
COUNTS = {
    "advice/advised": "decisions with advice",
    "constraints/vetoes": "actions vetoed",
    "constraints/violations": "decisions against a rule",
    "constraints/abstentions": "actions not judged",
}
Records = list[dict[str, Any]]  # of one run
SAMPLES = 4  # requests shown
REPEATED = 4  # lines at the beginning of all samples from which on they are shown once
LONGEST = 900  # characters of a prompt shown, from its end


def report_section(runs: Sequence[Run]) -> Iterable[str]:
    """Tables for those of these runs that asked a language model; nothing where none did."""
    known = [(run, run.metrics()) for run in runs]
    asking = {run: records for run, records in known if any(name.endswith(QUESTIONS) for name in records[-1])}
    if not asking:
        return
    lasts = [records[-1] for records in asking.values()]
    names = dict.fromkeys(name for last in lasts for name in last if name.endswith(QUESTIONS))
    asked = [name.removesuffix(QUESTIONS).rstrip("/") for name in names]
    yield "<h2>Language models</h2>"
    models = ", ".join(f"{path}: {name}" for path, name in _models(next(iter(asking))).items())
    which = f"the run {next(iter(asking)).path.name}" if len(asking) == 1 else f"{len(asking)} runs"
    yield f"<p class=quiet>{escape(models)}. Counts of {escape(which)}, from beginning to end.</p>"
    yield html.table(["asked by", *asked], _usage(list(asking.values()), asked))
    if facts := list(_facts(asking)):
        yield html.table(["group", "what", "share or number"], facts)
    for run in asking:
        if found := list(_transcripts(run)):
            yield from found
            return


def _models(run: Run) -> dict[str, str]:
    """The models of a run by the path of their setting."""
    found: dict[str, str] = {}
    for name, group in run.config().groups.items():
        for role in ROLES:
            part = getattr(group, role)
            if isinstance(part, Part):
                found |= {path: lm.name for path, lm in find_models(part.settings, f"{name}.{role}").items()}
    return found


def _usage(runs: Sequence[Records], asked: Sequence[str]) -> Iterable[list[str]]:
    """A row for each count that somebody has, with a column for each role of a group that asked."""
    counts = {where: {name: _counted(runs, f"{where}/lm/{name}") for name in COUNTED} for where in asked}
    for mine in counts.values():
        questions, calls = mine["questions"], mine["calls"]
        if questions is not None and calls is not None:  # the same question again, and answers of the file
            mine["remembered"] = max(questions - (mine["unanswered"] or 0.0) - calls, 0.0)
    for name, words in COUNTED.items():
        row = [mine[name] for mine in counts.values()]
        if any(count is not None for count in row):
            yield [words, *("–" if count is None else f"{count:,.0f}" for count in row)]


def _facts(asking: Mapping[Run, Records]) -> Iterable[list[str]]:
    """Rows on advice given and followed, and on vetoed actions."""
    groups = next(iter(asking)).config().groups
    for name in dict.fromkeys(name for records in asking.values() for name in records[-1]):
        group, _, metric = name.partition("/")
        if metric in SHARES:
            shares = [records[-1][name] for records in asking.values() if name in records[-1]]
            yield [group, SHARES[metric], f"{np.mean(shares):.1%}"]
        elif metric in COUNTS:
            anew = metric.startswith("constraints/") and group in groups and groups[group].learner is not None
            yield [group, COUNTS[metric], f"{_counted(list(asking.values()), name, anew):,.0f}"]


def _counted(runs: Sequence[Records], name: str, anew: bool = False) -> float | None:
    """The total of a count over runs; `anew`: every record counts its own iteration, else all since the start.

    A count that falls has begun again, after a resume.
    """
    found = [[record[name] for record in records if name in record] for records in runs]
    if not any(found):
        return None
    if anew:
        return float(sum(map(sum, found)))
    ends = [old for counts in found for old, new in zip(counts, [*counts[1:], -1.0], strict=True) if new < old]
    return float(sum(ends))


# Samples ------------------------------------------------------------------------------------------------


def _transcripts(run: Run) -> Iterable[str]:
    """A few requests in words, with their answers, folded."""
    found = read_samples(run.path / ANSWERS)
    if found:
        parts = [f"<pre>{escape(text)}</pre>" for text in shortened([describe(one) for one in found[-SAMPLES:]])]
        yield html.folded(f"{len(parts)} of the questions and answers", parts)


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The stored requests in words, the first one first; none in a file of an earlier version."""
    if not path.is_file():
        return []
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute("select value from samples order by number").fetchall()
    except sqlite3.Error:  # a table that is not there, or a file in use by a writer
        return []
    return [json.loads(value) for (value,) in rows]


def shortened(texts: Sequence[str]) -> list[str]:
    """Texts without the lines that all of them begin with, such as instructions and examples, except in the first."""
    lines = [text.split("\n") for text in texts]
    same = sum(1 for _ in itertools.takewhile(lambda row: len(set(row)) == 1, zip(*lines)))
    if same < REPEATED or len(texts) < 2:
        return list(texts)
    return [texts[0], *("\n".join([f"… ({same} lines as above)", *one[same:]]) for one in lines[1:])]


def describe(sample: dict[str, Any]) -> str:
    """A request and its answer as text: the end of the prompt, then what the model wrote or preferred."""
    prompt = sample["prompt"]
    text = prompt if isinstance(prompt, str) else "\n".join(f"{one['role']}: {one['content']}" for one in prompt)
    shown = text if len(text) <= LONGEST else f"… {text[-LONGEST:]}"
    if "completion" in sample:
        return f"{shown}\n→ {sample['completion'].strip()}"
    choices = sample["choices"]
    scores = np.array(sample["logprobs"][: len(choices)], float)
    chances = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    order = np.argsort(-chances, kind="stable")
    return f"{shown}\n→ " + ", ".join(f"{choices[i].strip()} {chances[i]:.0%}" for i in order)
