"""The command `coterie rate`; what is heavy is imported when it runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer


def rate(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN…", help="runs of one world")],
    judge: Annotated[
        str, typer.Option(help="person, return (the world's own), or a language model: embedded, NAME, URL")
    ] = "person",
    pairs: Annotated[int, typer.Option(min=1, help="of episodes to compare, counting those already rated")] = 50,
    episodes: Annotated[int, typer.Option(min=1, help="of each run")] = 10,
    seed: Annotated[int, typer.Option("--seed", min=0, help="of the episodes and the pairs")] = 0,
    instruction: Annotated[str | None, typer.Option(help="what is to be judged")] = None,
    group: Annotated[str | None, typer.Option(help="whose behaviour (default: the first that learned)")] = None,
    ratings: Annotated[
        str | None, typer.Option(help="file that keeps what was said (default: FIRST RUN/ratings-JUDGE.jsonl)")
    ] = None,
    out: Annotated[str | None, typer.Option(help="also write the scores as JSON")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    sample: Annotated[bool, typer.Option("--sample", help="draw actions instead of taking the likeliest")] = False,
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="best, last or a step")] = "best",
    moments: Annotated[
        int | None, typer.Option(min=2, help="of an episode told in words, at most (default: 6)")
    ] = None,
    template: Annotated[str | None, typer.Option(help="of the question to a model: a file, or one of ours")] = None,
    cache: Annotated[str | None, typer.Option(help="SQLite file that keeps a model's answers")] = None,
    calls: Annotated[int | None, typer.Option(min=0, help="to a model, at most; two for every pair")] = None,
) -> None:
    """Compare runs by pairs of episodes: Bradley–Terry scores from a person, a model or the return."""
    from coterie import rating, rating_judges, rating_show
    from coterie.types import CoterieError

    asked: dict[str, Any] = {
        "cache": cache,
        "calls": calls,
        "template": template,
        "moments": moments,
        "instruction": instruction,
    }
    rating_judges.check_heeded(judge, asked)
    if instruction is not None and not instruction.strip():
        raise CoterieError("--instruction is empty; say what is to be judged, or leave it out")
    told = instruction or rating.INSTRUCTION
    try:
        chosen = {name: value for name, value in asked.items() if value is not None and name != "instruction"}
        options = rating_judges.ModelOptions(**chosen)
        who = rating_judges.make(judge, told, options)
    except ValueError as error:
        raise CoterieError(str(error)) from None
    kept = Path(ratings) if ratings else Path(runs[0]) / f"ratings-{re.sub(r'[^A-Za-z0-9.]+', '-', judge)}.jsonl"
    seen = who.looks.moments if who.looks.words else None
    asking = who.template if isinstance(who, rating_judges.Model) else None
    named = tuple(str(Path(run)) for run in runs)
    contest = rating.Contest(named, judge, told, group, episodes, seed, checkpoint, sample, seen, asking)
    given = rating.rate(contest, who, kept, pairs)
    found = rating.standings(named, given) if any(one.score is not None for one in given) else []
    plain = rating_show.as_plain(contest, given, found, kept)
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(plain, indent=2) + "\n")
    print(json.dumps(plain) if as_json else rating_show.as_table(contest, given, found))
    if not as_json:
        print(f"ratings  {kept}{rating_show.progress(contest, given, pairs)}")
