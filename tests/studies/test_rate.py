"""Episodes compared in pairs: by returns, by models, by people; kept, gone on with, and scored."""

import itertools
import json
import math
import re
from statistics import NormalDist

import numpy as np
import pytest

from coterie.core.types import CoterieError
from coterie.core.world import Sign
from coterie.preferences.ratings import Pair, Rating, RatingSession, episodes_file, read_episodes
from coterie.studies.rate import judges, show
from coterie.studies.rate.episodes import Episode, ViewOptions, key_moments, play
from coterie.studies.rate.judges import ModelJudge, ModelOptions, PersonJudge, ReturnJudge
from coterie.studies.rate.rate import StopRating, count_wins, pairs, rate, standings
from coterie.training.table import load
from coterie.video import captions
from helpers import run as run_cases
from helpers.rating import ASKED, rated_runs
from helpers.small_worlds import generator


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return rated_runs(tmp_path_factory.mktemp("rated"))


@pytest.fixture(scope="module")
def grids(tmp_path_factory):
    """Two runs of a grid world, which can be drawn and described."""
    folder = tmp_path_factory.mktemp("grids")
    longer = [
        "train.total_steps=16384",
        "train.num_envs=16",
        "train.rollout_steps=64",
        "groups.team.learner.learning_rate=5e-3",
    ]
    made = [run_cases.train(folder / "long", *longer), run_cases.train(folder / "short", "train.total_steps=64")]
    return [str(run.path) for run in made]


def episode(returns=0.0, steps=3, frames=(), legend=()):
    rows = np.zeros((steps, 2), np.float32)
    return Episode(rows, rows, returns, ("Step 1. Here. Move: up.", f"After {steps} steps. There."), frames, legend)


# Pairs ----------------------------------------------------------------------------------------------------


def test_every_pair_comes_once_and_every_beginning_is_even():
    every = list(pairs(3, 4, 0))
    assert len(every) == 3 * 16
    assert len({frozenset((p.first, p.second)) for p in every}) == 48
    assert all(p.first[0] != p.second[0] for p in every)
    begin = every[:12]  # who began alike meets first: each of 4 episodes once for each of 3 meetings
    assert all(p.first[1] == p.second[1] for p in begin)
    counts = np.bincount([run for p in begin for run, _ in (p.first, p.second)])
    assert counts.tolist() == [8, 8, 8]
    firsts = np.mean([p.first[0] < p.second[0] for p in every])
    assert 0.3 < firsts < 0.7
    assert list(pairs(3, 4, 0)) == every
    assert list(pairs(3, 4, 1)) != every


def test_key_moments_are_the_first_the_paid_and_some_between():
    paid = [False] * 20
    paid[7] = paid[13] = True
    assert key_moments(paid, 4) == [0, 6, 7, 13]
    assert key_moments(paid, 2) == [0, 7]
    assert key_moments([False] * 3, 6) == [0, 1, 2]


# Scores ---------------------------------------------------------------------------------------------------


def test_wins_ties_and_skips_are_counted():
    given = [
        Rating(Pair((0, 0), (1, 0)), 1.0),
        Rating(Pair((1, 1), (0, 1)), 1.0),
        Rating(Pair((1, 2), (0, 2)), 0.5),
        Rating(Pair((0, 3), (2, 3)), 0.0),
        Rating(Pair((0, 4), (2, 4)), None),
    ]
    wins, counts = count_wins(3, given)
    assert wins.tolist() == [[0, 1.5, 0], [1.5, 0, 0], [1, 0, 0]]
    assert counts.tolist() == [[1, 1, 2], [1, 1, 1], [1, 0, 0]]
    found = standings(["x", "y", "z"], given)
    assert [s.run for s in found] == ["z", "y", "x"]
    assert all(s.low < s.strength < s.high for s in found)
    assert found[2].pairs == 4


@pytest.mark.slow
def test_intervals_hold_the_truth_where_pairs_share_episodes():
    """Every episode of ten is in five of the fifty pairs, so that they say as much as far fewer pairs would."""
    held, repetitions, apart = 0.0, 200, 0.8
    chance = NormalDist().cdf(apart / math.sqrt(2))
    truth = math.log(chance / (1 - chance)) / 2
    for repetition in range(repetitions):
        returns = generator(repetition).normal(size=(2, 10)) + [[apart], [0]]
        given = [
            Rating(pair, float(returns[pair.first] > returns[pair.second]))
            for pair in itertools.islice(pairs(2, 10, repetition), 50)
        ]
        first, second = sorted(standings(["x", "y"], given), key=lambda one: one.run)
        held += first.low <= truth <= first.high
        assert (second.low, second.high) == pytest.approx((-first.high, -first.low))
    assert held / repetitions > 0.88


# By return ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_return_ranks_runs_as_their_returns_do(runs, tmp_path):
    kept = tmp_path / "r.jsonl"
    session = RatingSession((runs[1], runs[2], runs[0]), "return", episodes=6)
    given = rate(session, ReturnJudge(), kept, 30)
    assert len(given) == 30
    found = standings(session.runs, given)
    assert [s.run for s in found] == runs
    assert found[0].low > found[2].high
    library = read_episodes(episodes_file(kept))
    assert library.returns.reshape(3, 6).mean(axis=1)[2] == 6.0
    assert library.observation.shape == (3 * 6 * 6, 4)
    assert library.action.shape == (108, 3)
    assert library.starts.tolist() == list(range(0, 109, 6))


def test_episodes_begin_alike_and_depend_on_the_seed(runs):
    tables = [load(run) for run in runs[:2]]
    one, other = (play(table, "all", 4, 3, ViewOptions()) for table in tables)
    for mine, theirs in zip(one, other, strict=True):
        assert np.array_equal(mine.observation, theirs.observation)  # lights do not depend on what is done
    again = play(tables[0], "all", 4, 4, ViewOptions())
    assert not all(np.array_equal(a.observation, b.observation) for a, b in zip(one, again, strict=True))
    drawn = play(tables[1], "all", 4, 3, ViewOptions(), greedy=False)
    assert not all(np.array_equal(a.action, b.action) for a, b in zip(other, drawn, strict=True))


def test_the_checkpoint_is_the_one_that_is_named_and_actions_are_drawn_if_so_asked(runs, tmp_path):
    asked = {"plain": {}, "drawn": {"stochastic": True}}
    for name, change in asked.items():
        rate(
            RatingSession(tuple(runs[:2]), "return", episodes=4, **change), ReturnJudge(), tmp_path / f"{name}.jsonl", 1
        )
    plain, drawn = (read_episodes(tmp_path / f"{name}.jsonl.npz") for name in ("plain", "drawn"))
    assert not np.array_equal(plain.action, drawn.action)
    with pytest.raises(CoterieError, match="12345"):
        rate(RatingSession(tuple(runs[:2]), "return", checkpoint="12345"), ReturnJudge(), tmp_path / "none.jsonl", 1)


@pytest.mark.slow
def test_a_run_that_is_advised_by_hints_can_be_rated(tmp_path):
    advised = ["groups.team.advisor.name=expert", "groups.team.advisor.use.mode=hint", "train.total_steps=64"]
    made = [str(run_cases.train(tmp_path / name, *advised, f"seed={name}").path) for name in ("1", "2")]
    given = rate(RatingSession(tuple(made), "return", episodes=2), ReturnJudge(), tmp_path / "r.jsonl", 3)
    assert len(given) == 3


# What cannot be compared ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (lambda runs, grids: runs[:1], "at least two"),
        (lambda runs, grids: [runs[0], runs[0]], "with itself"),
        (lambda runs, grids: [runs[0], grids[0]], "plays helpers.rating:Lights and .* plays gridworld"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(runs, grids, tmp_path, chosen, said):
    with pytest.raises(CoterieError, match=said):
        rate(RatingSession(tuple(chosen(runs, grids)), "return"), ReturnJudge(), tmp_path / "r.jsonl", 2)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_world_with_other_settings_is_another_world(runs, tmp_path, grids):
    from helpers.rating import lights

    other = lights(tmp_path, "longer", "world.length=7", "train.total_steps=384")
    with pytest.raises(CoterieError, match="length is 6 and 7"):
        rate(RatingSession((runs[0], str(other.path)), "return"), ReturnJudge(), tmp_path / "r.jsonl", 2)
    with pytest.raises(CoterieError, match="no group 'nobody'; there are all"):
        rate(RatingSession(tuple(runs), "return", group="nobody"), ReturnJudge(), tmp_path / "r.jsonl", 2)


# A model --------------------------------------------------------------------------------------------------


def model(**options):
    ASKED.clear()
    return ModelJudge("helpers.rating:BRISK", "Be brisk.", ModelOptions(**options))


def test_the_place_of_an_episode_does_not_matter():
    judge = model()
    short, long = episode(steps=3), episode(steps=9)
    assert judge.compare(short, long) == 1.0
    assert judge.compare(long, short) == 0.0
    assert judge.probability(short, long) == pytest.approx(1 / (1 + np.exp(-4)))  # the 10 nats for the first are gone
    assert judge.compare(short, episode(steps=3)) == 0.5
    assert "Be brisk." in ASKED[0]
    assert "Move: up." in ASKED[0]


def test_a_model_sees_no_returns_and_its_budget_ends_the_session(grids, tmp_path):
    judge = model(calls=3, moments=3)
    given = rate(RatingSession(tuple(grids), "m", episodes=3), judge, tmp_path / "r.jsonl", 5)
    assert len(given) == 1  # two questions to a pair; the third call is none
    assert len(set(ASKED)) == 2
    assert not any(word in ASKED[0].lower() for word in ("return", "reward"))
    assert ASKED[0].count("Step ") <= 2 * 2 * 3  # two agents, two episodes
    more = model(cache=str(tmp_path / "c.db"))
    assert len(rate(RatingSession(tuple(grids), "m", episodes=3), more, tmp_path / "r.jsonl", 5)) == 5
    assert len(set(ASKED)) == 2 * 4  # all but the first session's pair
    again = model(cache=str(tmp_path / "c.db"))
    assert len(rate(RatingSession(tuple(grids), "m", episodes=3), again, tmp_path / "s.jsonl", 5)) == 5
    assert len(set(ASKED)) == 2  # the first session's pair; the others came from the cache


def test_a_server_that_is_gone_is_an_error_and_loses_nothing(grids, tmp_path, coterie_):
    ASKED.clear()
    words = ["rate", *grids, "--judge", "helpers.rating:SILENT", "--ratings", tmp_path / "r.jsonl", "--episodes", 2]
    code, out, err = coterie_(*words)
    assert code == 1
    assert not out
    assert "does not answer" in err
    assert "connection refused" in err
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 2  # the session, and the pair it answered


def test_a_template_of_ones_own_is_used(tmp_path):
    path = run_cases.written(tmp_path / "mine.txt", "Be strict.\n{state}\nBest:")
    judge = model(template=str(path))
    judge.compare(episode(), episode(steps=5))
    assert ASKED[0].startswith("Be strict.")
    before = judge.template
    path.write_text("Be mild.\n{state}\nBest:")
    assert model(template=str(path)).template != before


# A person -------------------------------------------------------------------------------------------------


def person(*answers):
    said, left = [], list(answers)

    def ask(question):
        if not left:
            raise EOFError
        return left.pop(0)

    return PersonJudge("Which is nicer?", 4, ask, said.append), said


def test_keys_of_a_person():
    for word, score in (("a", 1.0), ("B", 0.0), ("tie", 0.5), ("skip", None)):
        assert person(word)[0].compare(episode(), episode()) == score
    for leaving in (["q"], [], ["what", "quit"]):
        with pytest.raises(StopRating):
            person(*leaving)[0].compare(episode(), episode())
    judge, said = person("r", "a")
    judge.compare(episode(frames=("#" * 70,)), episode())
    assert sum("Which is nicer?" in line for line in said) == 2
    assert max(len(line) for text in said for line in text.splitlines()) <= 80


def test_a_person_sees_both_sides_and_where_they_are_and_how_to_answer():
    judge, said = person("what", "a")
    judge.begin(2, 20)
    assert said[0] == "18 pairs of episodes, A and B. 2 are rated already. Answer with a key:"
    assert "a  A is better" in said[1]
    judge.compare(episode(frames=("x.", ".x")), episode(frames=("o..", ".o.", "..o")))
    assert "\npair 3 of 20: Which is nicer?" in said
    assert sum("nicer" in text for text in said) == 1
    assert "\nA: step 1 of 1 (over)   |   B: step 2 of 2 (over)\n.x                      |   ..o" in said
    assert said[-1] == judges.HELP  # for a key that means nothing


def test_in_a_terminal_the_question_stays_above_every_frame(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(judges.time, "sleep", lambda seconds: None)
    judge, said = person("a")
    judge.begin(0, 1)
    judge.compare(episode(frames=("step 0\nx.", "step 1\n.x")), episode(frames=("step 0\no.",)))
    first, second = said[2:4]
    head, scene = first.split("\n\n")
    assert head == f"{judges.CLEAR}pair 1 of 1: Which is nicer?"
    assert scene.splitlines() == ["A: step 0 of 1   |   B: step 0 of 0 (over)", "x.               |   o."]
    assert "A: step 1 of 1 (over)" in second
    assert "nicer" in second


def test_signs_are_explained_and_in_colour_where_the_terminal_has_it(monkeypatch):
    legend = (Sign("x", "agent_0", (0, 114, 178)),)
    judge, said = person("a", "b")
    for colour in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", colour)
        judge.compare(episode(frames=("x.",), legend=legend), episode(frames=(".x",), legend=legend))
    plain, painted = (text.splitlines() for text in said if "A: step" in text)
    assert plain[-1] == "x agent_0"
    assert captions.paint("x", legend[0].colour) in painted[-1]
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in painted] == plain


def test_each_question_says_what_its_keys_mean():
    asked = []
    PersonJudge("Which?", 4, lambda question: asked.append(question) or "a", str).compare(episode(), episode())
    assert all(f"[{key}] {word}" in asked[0] for key, word in zip("abtsrq", ("A", "B", "tie", "skip", "again", "stop")))
    assert len(asked[0].strip()) <= 78


def test_sides_that_are_too_wide_are_below_each_other():
    assert judges.side_by_side(["a", "bb"], ["c"]) == ["a    |   c", "bb   |"]
    assert judges.side_by_side(["a" * 60], ["c" * 60]) == ["a" * 60, "", "c" * 60]


def test_a_person_rates_in_the_terminal(grids, tmp_path, coterie_, monkeypatch):
    words = ["rate", *grids, "--pairs", "4", "--episodes", "2", "--ratings", tmp_path / "r.jsonl"]
    answers = iter(["a", "s", "q"])
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    monkeypatch.setattr(judges.PersonJudge.__init__, "__defaults__", (lambda q: next(answers), print))
    code, out, _ = coterie_(*words)
    assert code == 0
    assert "Move: " in out
    assert "pair 1 of 4" in out
    assert "pair 3 of 4" in out
    assert "1 pair compared by person, 1 skipped" in out
    assert "\nopen     2 of 4 pairs; the same command continues\n" in out
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 3


def test_a_world_with_neither_picture_nor_text_is_refused(runs, tmp_path):
    with pytest.raises(CoterieError, match="--judge return"):
        rate(RatingSession(tuple(runs), "person"), person("a")[0], tmp_path / "r.jsonl", 1)


# The command ----------------------------------------------------------------------------------------------


def test_the_command_prints_a_table_and_json(runs, tmp_path, coterie_):
    words = ["rate", *runs, "--judge", "return", "--pairs", 12, "--episodes", 4, "--ratings", tmp_path / "r.jsonl"]
    code, out, _ = coterie_(*words)
    assert code == 0
    rows = out.splitlines()
    assert rows[-1] == f"ratings  {tmp_path / 'r.jsonl'}"  # as long as the path is
    assert max(map(len, rows[:-1])) <= 80
    assert rows[0] == "12 pairs compared by return"
    assert [row.split()[0] for row in rows[2:5]] == ["good", "fresh", "bad"]
    code, out, _ = coterie_(*words, "--json", "--out", tmp_path / "scores.json")
    printed = json.loads(out)
    assert printed == json.loads((tmp_path / "scores.json").read_text())
    assert printed["pairs"] == 12
    assert [one["run"] for one in printed["runs"]] == runs
    low, high = printed["runs"][0]["strength_ci95"]
    assert low < printed["runs"][0]["strength"] < high


def test_a_judge_that_is_nearly_named_is_suggested(grids, coterie_, tmp_path):
    code, _, said = coterie_("rate", *grids, "--judge", "retrun~", "--ratings", tmp_path / "r.jsonl")
    assert code != 0
    assert said.startswith("coterie: --judge retrun~: no model 'retrun~'")
    assert said.strip().endswith("; did you mean 'return'?")
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(
    ("judge", "words", "said"),
    [
        *(
            ("return", words, f"{words[0]} has no effect with --judge return")
            for words in (
                ("--cache", "c.db"),
                ("--calls", 3),
                ("--template", "rating"),
                ("--moments", 3),
                ("--instruction", "Go."),
            )
        ),
        ("person", ("--calls", 3), "--calls has no effect with --judge person"),
        ("person", ("--instruction", " "), "--instruction: empty"),
        ("helpers.rating:BRISK", ("--instruction", ""), "--instruction: empty"),
    ],
)
def test_options_that_would_do_nothing_are_refused(runs, tmp_path, coterie_, judge, words, said):
    kept = tmp_path / "r.jsonl"
    code, _, err = coterie_("rate", *runs, "--judge", judge, "--ratings", kept, *words)
    assert code == 1
    assert said in err
    assert not kept.exists()


@pytest.mark.parametrize(("option", "value"), [("moments", 3), ("template", "pairs"), ("instruction", "Be slow.")])
def test_what_a_model_is_asked_belongs_to_the_session(grids, tmp_path, coterie_, option, value):
    words = ["rate", *grids, "--judge", "helpers.rating:BRISK", "--ratings", tmp_path / "r.jsonl", "--pairs", 1]
    assert coterie_(*words, "--episodes", 1)[0] == 0
    code, _, err = coterie_(*words, "--episodes", 1, f"--{option}", value)
    assert code == 1
    assert f"holds ratings with {option}" in err


def test_there_are_only_so_many_pairs(runs, tmp_path, coterie_):
    words = ["rate", *runs[:2], "--judge", "return", "--episodes", 2, "--ratings", tmp_path / "r.jsonl"]
    code, out, _ = coterie_(*words)
    assert code == 0
    assert "4 pairs compared" in out
    assert "all 4 pairs are rated; raise --episodes" in out
    assert " open" not in out


def test_without_a_comparison_there_is_no_table(grids, tmp_path, coterie_, monkeypatch):
    words = ["rate", *grids, "--episodes", "2", "--ratings", tmp_path / "r.jsonl"]
    answers = iter(["s", "q", "q"])
    monkeypatch.setattr(judges.PersonJudge.__init__, "__defaults__", (lambda q: next(answers), print))
    code, out, _ = coterie_(*words)
    assert code == 0
    assert "no pairs compared by person, 1 skipped" in out
    assert "score" not in out
    assert "7 of 8 pairs" not in out
    assert "3 of 4 pairs" in out
    out = coterie_(*words, "--json")[1]
    assert json.loads(out[out.index("{") :])["runs"] == []


def test_long_names_fit_the_table():
    session = RatingSession(("a" * 60, "b"), "return")
    given = [Rating(Pair((0, 0), (1, 0)), 1.0)]
    shown = show.as_table(session, given, standings(session.runs, given))
    assert max(map(len, shown.splitlines())) <= 80
