"""Loading by name, scripted models, argument checks, calibration, documented settings."""

import math

import numpy as np
import pytest

from coterie.lm import LMSettings, Sampling, load
from coterie.lm.ask import calibration
from coterie.lm.ask.budget import BudgetSettings
from coterie.lm.ask.cache import CacheSettings
from coterie.lm.ask.http import HttpSettings
from coterie.lm.ask.interface import BudgetDenied, LMError, Missing
from coterie.lm.ask.loading import check_model, wrap
from coterie.lm.ask.local_settings import LocalSettings
from coterie.lm.ask.retry import RetrySettings
from coterie.lm.ask.scripted import Scripted
from helpers.lm import TABLE, Counting

SCRIPTED = Scripted.from_table(TABLE)  # named lm: {name: "test_lm:SCRIPTED"}


def test_a_table_is_sampled_and_scored_exactly():
    many = SCRIPTED.complete(["sky?"], 2000, Sampling(temperature=1.0))[0]
    assert np.mean([sample.text == "blue" for sample in many]) == pytest.approx(0.75, abs=0.03)
    assert SCRIPTED.complete([[{"role": "user", "content": "sky?"}]], 2)[0][1].text == "blue"
    np.testing.assert_allclose(np.exp(SCRIPTED.score(["sky?"], [["grey", "red"]])), [[0.25, 0]])
    with pytest.raises(LMError, match="no prompt 'sea"):
        SCRIPTED.complete(["sea?"])


def test_scripted_answers_respect_stop_and_max_tokens():
    lm = Scripted(lambda prompt, random: "one, two, three")
    found = lm.complete(["q"], sampling=Sampling(stop=(",",)))[0][0]
    assert (found.text, found.finish) == ("one", "stop")
    found = lm.complete(["q"], sampling=Sampling(max_tokens=5))[0][0]
    assert (found.text, found.finish, found.completion_tokens) == ("one, ", "length", 5)


def test_cache_budget_and_usage_work_together(tmp_path):
    inner = Counting()
    settings = LMSettings(cache=CacheSettings(str(tmp_path / "a.db")), budget=BudgetSettings(calls=2))
    lm = wrap(inner, settings)
    lm.score(["sky?", "grass?"], [["blue"], ["green"]])
    lm.score(["sky?", "grass?"], [["blue"], ["green"]])  # known: free
    with pytest.raises(BudgetDenied):
        lm.score(["sky?"], [["grey"]])
    found = {name: count for name, count in lm.metrics().items() if count and name != "lm/seconds"}
    assert found == {
        **{"lm/calls": 2, "lm/scored_tokens": 19, "lm/cache_hits": 2, "lm/cache_misses": 3, "lm/refusals": 1},
    }
    state = lm.state()
    lm.close()
    again = wrap(Counting(), settings)  # resumed: the journal is in the cache's file
    again.load(state)
    again.score(["sky?"], [["blue"]])
    assert again.metrics()["lm/cache_hits"] == 3
    with pytest.raises(BudgetDenied):
        again.score(["sky?"], [["grey"]])
    again.close()


def test_a_custom_model_by_name():
    assert load("test_lm:SCRIPTED").complete(["grass?"])[0][0].text == "green"
    with pytest.raises(Missing, match="nosuch"):
        load("nosuch.module:Name")
    with pytest.raises(Missing, match="LanguageModel, got OrderedDict"):
        load("collections:OrderedDict")


def test_missing_packages_are_named():
    from coterie.lm.ask import interface

    for check in (interface.import_extra, interface.check_installed):
        with pytest.raises(Missing, match=r"'no_such_package_here' .*: pip install 'coterie\[lm\]'"):
            check("no_such_package_here", "lm")


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *(("no such model", "auto"), ("nosuch.gguf", "auto"), ("no.such:model", "auto"), (".", "auto")),
        *(("no such model", "encoder"), (".", "encoder"), ("nosuch.gguf", "llamacpp"), ("nosuch", "llamacpp")),
        ("http://me:word@127.0.0.1:9/v1", "auto"),
    ],
)
def test_check_model_raises_the_error_of_load(name, backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messages = []
    for look in (check_model, load):
        with pytest.raises((Missing, ValueError)) as caught:
            look(LMSettings(name, backend))
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_check_model_reads_no_weights(tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="needs coterie[lm]")
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text("{}")
    for name in ("embedded", "minilm", str(tmp_path), "test_lm:SCRIPTED", "http://127.0.0.1:9/v1"):
        check_model(LMSettings(name))
    assert not (tmp_path / "cache").exists()  # nothing was fetched


def test_check_model_downloads_only_the_config(monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="needs coterie[lm]")
    asked = []
    monkeypatch.setattr(hub, "snapshot_download", lambda *words, **more: asked.append((words, more)))
    check_model(LMSettings("somebody/model"))
    assert asked == [(("somebody/model",), {"allow_patterns": "config.json"})]

    def away(*words, **more):
        raise OSError("Got: ConnectError: no way\nand more")

    monkeypatch.setattr(hub, "snapshot_download", away)
    with pytest.raises(Missing, match=r"model 'x'.*ConnectError: no way$"):
        check_model(LMSettings("x"))


def test_empty_batches_and_wrong_arguments():
    lm = load("test_lm:SCRIPTED")
    assert lm.complete([]) == []
    assert lm.score([], []).shape == (0, 0)
    for ask, message in (
        (lambda: lm.complete("sky?"), "must be a list"),
        (lambda: lm.complete(["sky?"], n=0), "at least 1"),
        (lambda: lm.score(["sky?"], []), "one list per prompt"),
        (lambda: lm.score(["sky?"], [[]]), "prompt 0"),
        (lambda: lm.score(["sky?"], [["a", ""]]), "non-empty"),
        (lambda: lm.score(["sky?"], [["blue"]], "median"), "'sum' or 'mean'"),
    ):
        with pytest.raises(ValueError, match=message):
            ask()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampling(max_tokens=0), "max_tokens must be above 0"),
        (lambda: Sampling(temperature=-1), "temperature must be at least 0"),
        (lambda: Sampling(top_p=1.5), r"top_p must lie in \[0, 1\]"),
        (lambda: Sampling(stop="x"), "tuple"),
        (lambda: CacheSettings("a", "reply"), "mode must be"),
        (lambda: BudgetSettings(calls=-1), "calls must be at least 0"),
        (lambda: RetrySettings(attempts=0), "attempts must be at least 1"),
        (lambda: RetrySettings(jitter=2), "jitter"),
        (lambda: HttpSettings(timeout=0), "timeout must be above 0"),
        (lambda: LocalSettings(dtype="int8"), "dtype must be"),
        (lambda: load("embedded", backend="none"), "backend must be"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# Calibration ------------------------------------------------------------------------------------------


def test_calibration_removes_a_favourite_answer():
    """The model prefers choice 0 by 3 nats; the right answer adds 1 nat."""
    truth = np.array([0, 1, 2, 1, 0, 2])
    scores = np.eye(3)[truth] + np.array([3.0, 0, 0]) - 5
    assert (scores.argmax(1) == truth).mean() < 0.5
    for prior in (calibration.batch_prior(scores), calibration.content_free_prior(np.array([[-2.0, -5, -5]]))):
        found = calibration.calibrated(scores, prior)
        assert (found.argmax(1) == truth).all()
        np.testing.assert_allclose(np.exp(found).sum(1), 1)


def test_priors_by_hand():
    scores = np.log([[0.5, 0.5], [0.25, 0.75]]) - 7
    np.testing.assert_allclose(calibration.batch_prior(scores), [math.log(0.125) / 2, math.log(0.375) / 2])
    np.testing.assert_allclose(np.exp(calibration.content_free_prior(scores)), [0.375, 0.625])
    np.testing.assert_allclose(calibration.probabilities(scores[1:], 0.5), [[0.1, 0.9]])


def test_impossible_choices_stay_impossible():
    found = calibration.calibrated(np.array([[0.0, -np.inf]]), np.array([-1.0, -np.inf]))
    np.testing.assert_array_equal(found, [[0, -np.inf]])
    with pytest.raises(ValueError, match="finite score"):
        calibration.log_normalize(np.array([[-np.inf, -np.inf]]))
