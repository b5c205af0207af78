"""The cache: which requests are sent again, modes, concurrent processes."""

import subprocess
import sys
import time

import numpy as np
import pytest

from coterie.lm import Sampling
from coterie.lm.ask.cache import Cache, CacheSettings
from coterie.lm.ask.http import Http, HttpSettings
from coterie.lm.ask.interface import NotRecorded
from coterie.lm.ask.scripted import Scripted
from coterie.lm.ask.usage import UsageCounter
from helpers.lm import Counting
from helpers.run import environment

WARM = Sampling(temperature=1.0, max_tokens=20)


def cached(path, inner=None, mode="replay", **settings):
    inner = inner or Counting()
    return Cache(inner, CacheSettings(str(path / "answers.db"), mode, **settings), usage=UsageCounter()), inner


def texts(found):
    return [[sample.text for sample in mine] for mine in found]


def test_samples_are_counted_by_number(tmp_path):
    lm, inner = cached(tmp_path)
    one = lm.complete(["sky?"], 1, WARM)
    three = lm.complete(["sky?"], 3, WARM)
    assert three[0][0] == one[0][0]
    assert inner.asked == [("complete", ["sky?"], 1, 0), ("complete", ["sky?"], 2, 1)]
    assert lm.complete(["sky?"], 3, WARM) == three
    assert lm.complete(["sky?"], 1, WARM, first=2) == [[three[0][2]]]
    assert len(inner.asked) == 2
    assert texts(three) == texts(inner.inner.complete(["sky?"], 3, WARM))


def test_only_missing_samples_are_requested(tmp_path):
    lm, inner = cached(tmp_path)
    lm.complete(["sky?"], 1, WARM, first=2)
    lm.complete(["sky?", "grass?", "sky?"], 5, WARM)
    asked = [what for what in inner.asked[1:] if what[1] == ["sky?"]]
    assert asked == [("complete", ["sky?"], 2, 0), ("complete", ["sky?"], 2, 3)]


def test_greedy_samples_are_one_request(tmp_path):
    lm, inner = cached(tmp_path)
    assert texts(lm.complete(["sky?"], 3)) == [["blue"] * 3]
    lm.complete(["sky?"], 1, first=7)
    assert inner.asked == [("complete", ["sky?"], 1, 0)]


def test_only_new_choices_are_scored(tmp_path):
    lm, inner = cached(tmp_path)
    lm.score(["sky?"], [["blue"]])
    found = lm.scores(["sky?", "sky?", "grass?"], [["blue", "grey"], ["grey"], ["green"]])
    assert inner.asked[1:] == [("score", ["sky?", "grass?"], [["grey"], ["green"]])]
    np.testing.assert_allclose(np.exp(found.logprobs), [[0.75, 0.25], [0.25, 0], [1, 0]])
    assert found.tokens.tolist() == [[4, 4], [4, 0], [5, 0]]


def test_embeddings_are_stored(tmp_path):
    lm, inner = cached(tmp_path)
    first = lm.embed(["a", "b", "a"])
    np.testing.assert_array_equal(first[0], first[2])
    np.testing.assert_array_equal(lm.embed(["b", "c"])[0], first[1])
    assert inner.asked == [("embed", ["a", "b"]), ("embed", ["c"])]


@pytest.mark.parametrize(
    "change",
    [
        lambda lm, inner: lm.complete(["sky?"], 1, Sampling(temperature=1.0, max_tokens=21)),
        lambda lm, inner: lm.complete(["sky?"], 1, Sampling(temperature=1.0, max_tokens=20, seed=1)),
        lambda lm, inner: lm.complete([[{"role": "user", "content": "sky?"}]], 1, WARM),
        lambda lm, inner: (setattr(inner, "name", "other weights"), lm.complete(["sky?"], 1, WARM)),
        lambda lm, inner: lm.score(["sky?"], [["blue"]]),
    ],
)
def test_different_requests_have_different_keys(tmp_path, change):
    lm, inner = cached(tmp_path)
    lm.complete(["sky?"], 1, WARM)
    change(lm, inner)
    assert len(inner.asked) == 2


@pytest.mark.parametrize("memory_entries", [0, 2, 1000])
def test_a_later_process_finds_everything(tmp_path, memory_entries):
    lm, _ = cached(tmp_path)
    before = lm.complete(["sky?", "grass?"], 4, WARM), lm.scores(["sky?"], [["blue", "grey"]]).logprobs
    lm.close()
    again, inner = cached(tmp_path, mode="replay-only", memory_entries=memory_entries)
    for _ in range(2):
        assert again.complete(["sky?", "grass?"], 4, WARM) == before[0]
        np.testing.assert_array_equal(again.score(["sky?"], [["blue", "grey"]]), before[1])
    assert inner.asked == []
    assert again.usage.metrics()["lm/cache_hits"] == 20


def test_a_full_memory_emptied_by_another_thread_loses_no_answer(tmp_path):
    lm, inner = cached(tmp_path)
    before = lm.complete(["sky?"], 3, WARM)

    class Emptied(dict):
        def __contains__(self, key):
            lm.memory = {}  # another thread's answers did not fit any more
            return super().__contains__(key)

    lm.memory = Emptied(lm.memory)
    assert lm.complete(["sky?"], 3, WARM) == before
    assert len(inner.asked) == 1


def test_replay_only_sends_no_request(tmp_path):
    lm, inner = cached(tmp_path, mode="replay-only")
    for ask in (
        lambda: lm.complete(["sky?"]),
        lambda: lm.score(["sky?"], [["blue"]]),
        lambda: lm.embed(["sky?"]),
    ):
        with pytest.raises(NotRecorded, match="sky"):
            ask()
    assert inner.asked == []


# What a key covers ----------------------------------------------------------------------------------------


def differing(tmp_path, one, other, prompt="q"):
    """Whether two models share no answers: what one stored, the other does not replay."""
    cached(tmp_path, Counting(one))[0].embed([prompt])
    same, _ = cached(tmp_path, Counting(one), mode="replay-only")
    same.embed([prompt])
    with pytest.raises(NotRecorded):
        cached(tmp_path, Counting(other), mode="replay-only")[0].embed([prompt])
    return True


def saying(word):
    return lambda prompt, random: word


def counted(number):
    def descend(prompt, random, left=number):
        return "end" if not left else descend(prompt, random, left - 1)

    return descend


@pytest.mark.parametrize(
    "pair",
    [
        (Scripted.from_table({"q": {"a": 1.0}}), Scripted.from_table({"q": {"b": 1.0}})),
        (Scripted.from_table({"q": {"a": 0.5, "b": 0.5}}), Scripted.from_table({"q": {"b": 0.5, "a": 0.5}})),
        (Scripted.from_table({"q": {"a": 1.0}}, "x"), Scripted.from_table({"q": {"b": 1.0}}, "x")),
        (Scripted(saying("a")), Scripted(saying("b"))),
        (Scripted(counted(1)), Scripted(counted(2))),
        (Scripted(saying("a"), lambda prompt, choice: -1.0), Scripted(saying("a"), lambda prompt, choice: -2.0)),
        (Scripted(saying("a"), width=8), Scripted(saying("a"), width=9)),
        (Scripted(saying("a"), identity="x"), Scripted(saying("a"), identity="y")),
    ],
)
def test_scripted_models_that_answer_differently_share_no_answers(tmp_path, pair):
    assert differing(tmp_path, *pair)


def test_equal_scripted_models_share_answers():
    assert Scripted(saying("a")).identity == Scripted(saying("a")).identity
    assert Scripted.from_table({"q": {"a": 1}}).identity == Scripted.from_table({"q": {"a": 1}}).identity


def test_every_field_of_a_message_is_part_of_the_key(tmp_path):
    plain = {"role": "user", "content": "q"}
    lm, inner = cached(tmp_path, Counting(Scripted(saying("a"))))
    for message in (plain, plain | {"name": "eva"}, plain | {"name": "adam"}, plain | {"mood": "eva"}):
        for _ in range(2):
            lm.complete([[message]])
    assert len(inner.asked) == 4
    lm.complete([[{"mood": "eva", "content": "q", "role": "user"}]])  # the order of the fields is not
    assert len(inner.asked) == 4


@pytest.mark.slow
def test_how_a_server_is_asked_is_part_of_the_key():
    pytest.importorskip("openai")
    names = {
        Http("http://127.0.0.1:9/v1", HttpSettings(model="m", chat=chat, logprobs=logprobs)).identity
        for chat in (False, True)
        for logprobs in (False, True)
    }
    assert len(names) == 4


def test_record_asks_again_and_overwrites(tmp_path):
    def model_saying(word):
        return Counting(Scripted(lambda prompt, random: word, identity="one name"))

    cached(tmp_path, model_saying("old"))[0].complete(["q"])
    fresh, inner = cached(tmp_path, model_saying("new"), mode="record")
    assert texts(fresh.complete(["q"])) == texts(fresh.complete(["q"])) == [["new"]]
    assert len(inner.asked) == 2
    assert texts(cached(tmp_path, model_saying("newer"))[0].complete(["q"])) == [["new"]]


RACE = """
import sys
from coterie.lm.ask.cache import Cache, CacheSettings
from coterie.lm.ask.scripted import Scripted
me = sys.argv[2]
lm = Cache(Scripted(lambda prompt, random: me), CacheSettings(sys.argv[1]))
answers = [lm.complete([f"question {i}"])[0][0].text for i in range(200)]
print("".join(answers))
"""


@pytest.mark.slow
def test_concurrent_processes_agree(tmp_path):
    """The first stored answer is valid; the other process returns it too."""
    command = [sys.executable, "-c", RACE, str(tmp_path / "a.db")]
    running = [subprocess.Popen([*command, who], stdout=subprocess.PIPE, text=True, env=environment()) for who in "ab"]
    first, second = (process.communicate(timeout=60)[0].strip() for process in running)
    assert len(first) == 200
    assert first == second


@pytest.mark.usefixtures("no_garbage_collection")
def test_a_warm_cache_is_fast(tmp_path):
    """At least 20,000 scores per second of processor time."""
    prompts = [f"Where is the apple, {i} steps above or below? {'x' * 200}" for i in range(1000)]
    choices = [[" up", " down", " left", " right"]] * len(prompts)
    lm, inner = cached(tmp_path, Counting(Scripted(lambda prompt, random: "")))
    lm.score(prompts, choices)
    lm.close()
    again, inner = cached(tmp_path, inner)
    begin = time.process_time()
    again.score(prompts, choices)
    seconds = time.process_time() - begin
    assert len(inner.asked) == 1
    assert 4000 / seconds > 20_000
