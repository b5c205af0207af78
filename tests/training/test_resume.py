"""Killed at any moment and resumed, a run comes to the same end, bit for bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

import coterie
from coterie.algorithms.ppo.ppo import PPO
from coterie.config.schema import ConfigError
from coterie.core.types import CoterieError
from coterie.runs import checkpoint, metrics
from coterie.runs.interrupt import Interrupted, interruptible
from coterie.runs.run import Run
from coterie.training import loop, runner
from coterie.training import start as starting
from helpers import run as run_cases
from helpers.processes import FORKED, Command
from helpers.resume import assert_refused, stopped
from helpers.run import DUEL, GRID, assert_same_end, environment, files, numbers, results, train, written

SAVING = ("checkpoint.py", "run.py", "metrics.py")


# Killed by kill -9, at any function call --------------------------------------------------------------------


def command(path, experiment, kill_at, only_saving, notes):
    """A child's life: train or resume, and be killed at the given function call (0: never, count them)."""
    calls = {True: 0, False: 0}
    run_training = starting.run_training

    def count(frame, event, argument):
        if event not in ("call", "c_call") or "coterie" not in frame.f_code.co_filename:
            return
        calls[False] += 1
        calls[True] += frame.f_code.co_filename.endswith(SAVING)
        if calls[only_saving] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(*arguments, **options):
        sys.setprofile(count)
        try:
            return run_training(*arguments, **options)
        finally:
            sys.setprofile(None)

    starting.run_training = counted
    if experiment is None:
        coterie.resume(path, quiet=True)
    else:
        train(path, experiment=experiment)
    notes.write_text(json.dumps([calls[False], calls[True]]))


def in_a_child(path, experiment=None, kill_at=0, only_saving=False):
    notes = path.with_suffix(".calls")
    process = FORKED.Process(target=command, args=(path, experiment, kill_at, only_saving, notes))
    process.start()
    process.join(60)
    assert process.exitcode in ((0, -signal.SIGKILL) if kill_at else (0,))  # it may have been at its end already
    return None if kill_at else json.loads(notes.read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Uninterrupted runs of the grid world, and of two groups that take turns: experiment, run, its calls."""
    base = tmp_path_factory.mktemp("whole")
    made = {}
    for game, experiment in (("grid", "gridworld-cooperative"), ("duel", str(written(base / "duel.yaml", DUEL)))):
        calls = in_a_child(base / game, experiment)
        made[game] = (experiment, Run.open(base / game), calls)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("game", "only_saving"), [("grid", False), ("duel", True)], ids=["anywhere", "while saving"])
def test_killed_at_random_moments_and_resumed(tmp_path, whole, game, only_saving):
    """Every run is killed, then its resumption is, and the end must not show it."""
    experiment, reference, calls = whole[game]
    total = calls[only_saving]
    moments = random.Random(f"{game} {only_saving}")  # the same in every test run, and any would do
    for number in range(2):
        path = tmp_path / f"run-{number}"
        in_a_child(path, experiment, moments.randrange(total * number // 2, total * (number + 1) // 2) + 1, only_saving)
        in_a_child(path, None, moments.randrange(total // 40) + 1, only_saving)
        coterie.resume(path, quiet=True)
        assert_same_end(Run.open(path), reference)


@pytest.mark.slow
def test_killed_while_the_first_checkpoint_is_written_a_run_starts_again(tmp_path, whole, monkeypatch):
    save = checkpoint.save

    def stop(directory, state):
        if directory.name.startswith("step"):
            (directory.parent / f".{directory.name}.tmp").mkdir()
            raise InterruptedError
        save(directory, state)

    monkeypatch.setattr(checkpoint, "save", stop)
    with pytest.raises(InterruptedError):
        train(tmp_path / "run")
    monkeypatch.undo()
    run = Run.open(tmp_path / "run")
    assert (run.steps(), run.steps("best"), len(run.metrics())) == ([], [0], 1)
    assert coterie.resume(run.path, quiet=True)
    assert_same_end(run, whole["grid"][1])


def test_resumed_from_its_step_0_a_run_records_it_once(tmp_path, whole):
    run = stopped(tmp_path / "run", at=0)
    assert (run.steps(), len(run.metrics())) == ([0], 1)
    coterie.resume(run.path, quiet=True)
    assert_same_end(run, whole["grid"][1])


# Stopped by a failure inside --------------------------------------------------------------------------------

PLACES = {
    "playing": (runner.Runner, "step", 75),
    "learning": (PPO, "step", 81),
    "evaluating": (loop.Training, "validate", 3),
    "recording": (metrics.Recorder, "write", 6),
    "syncing": (metrics.Recorder, "sync", 2),
    "saving": (Run, "save_checkpoint", 4),
    "pruning": (shutil, "rmtree", 2),
    "judging": (loop, "finish", 1),
    "comparing": (loop, "score_baselines", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("group_spec", PLACES)
def test_a_failure_anywhere_leaves_a_run_that_can_go_on(tmp_path, whole, monkeypatch, group_spec, after):
    owner, name, count = PLACES[group_spec]
    real, calls = getattr(owner, name), 0

    def fail(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == count and not after:
            raise InterruptedError(group_spec)
        result = real(*arguments, **options)
        if calls == count:
            raise InterruptedError(group_spec)
        return result

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(InterruptedError):
        train(tmp_path / "run")
    monkeypatch.undo()
    coterie.resume(tmp_path / "run", quiet=True)
    assert_same_end(Run.open(tmp_path / "run"), whole["grid"][1])
    assert (tmp_path / "run" / "report.html").exists()


# What resuming does -----------------------------------------------------------------------------------------


def test_records_after_the_checkpoint_are_cut_and_not_doubled(tmp_path, whole):
    run = stopped(tmp_path / "run")
    assert run.steps()[-1] == 128
    assert run.metrics()[-1]["env_steps"] == 160
    with open(run.metrics_file, "a") as file:
        file.write('{"iteration": 6, "env_steps": 19')
    coterie.resume(run.path, quiet=True)
    assert [r["iteration"] for r in run.metrics()] == list(range(9))
    assert_same_end(run, whole["grid"][1])


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "altered", "missing", "half removed"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path, whole, caplog, damage):
    run = stopped(tmp_path / "run")
    assert run.steps() == [64, 128]
    file = run.checkpoint_path(128) / checkpoint.ARRAYS
    data = bytearray(file.read_bytes())
    match damage:
        case "cut":
            file.write_bytes(data[: len(data) // 2])
        case "altered":
            data[-1] ^= 1
            file.write_bytes(data)
        case "missing":
            file.unlink()
        case "half removed":
            (run.checkpoint_path(128) / checkpoint.MANIFEST).unlink()
    coterie.resume(run.path, quiet=True)
    assert "checkpoint 'step-000000000128'" in caplog.text
    assert_same_end(run, whole["grid"][1])


def test_with_every_checkpoint_damaged_a_run_starts_again(tmp_path, whole, caplog):
    run = stopped(tmp_path / "run")
    for step in run.steps():
        (run.checkpoint_path(step) / checkpoint.VALUES).write_text("{}")
    coterie.resume(run.path, quiet=True)
    assert "has no intact checkpoint left; it starts anew from its config" in caplog.text
    assert_same_end(run, whole["grid"][1])


def test_a_finished_run_stays_as_it_is(tmp_path):
    run = train(tmp_path / "run", "train.total_steps=64")
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    assert coterie.resume(run.path, quiet=True) is False
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


@pytest.mark.slow
def test_a_longer_run_goes_on(tmp_path):
    run = train(tmp_path / "run", "train.total_steps=64", "groups.team.learner.learning_rate_schedule=constant")
    assert coterie.resume(run.path, ["train.total_steps=256"], quiet=True)
    assert run.config().train.total_steps == 256
    assert run.summary()["env_steps"] == 256
    at_once = train(tmp_path / "at once", "groups.team.learner.learning_rate_schedule=constant")
    assert numbers(run)[-1] == numbers(at_once)[-1]
    assert run_cases.files(run.checkpoint_path(256)) == run_cases.files(at_once.checkpoint_path(256))


@pytest.mark.slow
def test_a_solved_run_goes_on_when_more_is_asked_of_it(tmp_path):
    stop = "train.stop={return_mean: -1000, episodes: 2}"
    run = train(tmp_path / "run", stop)
    assert run.summary()["solved"]
    assert coterie.resume(run.path, ["train.total_steps=512"], quiet=True) is False
    assert coterie.resume(run.path, ["train.stop=null"], quiet=True)
    assert run.summary()["env_steps"] == 256
    assert not run.summary()["solved"]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_checkpoint_without_an_entry_is_refused_with_the_part_that_lacks_it(tmp_path, monkeypatch, forked, workers):
    run = train(tmp_path / "run", experiment=written(tmp_path / "duel.yaml", DUEL))
    read = checkpoint.load

    def load(directory):
        state = read(directory)
        for shard in state["shards"]:
            del shard["world"]["position"]
        return state

    monkeypatch.setattr(checkpoint, "load", load)
    with pytest.raises(CoterieError, match=r"world: its saved state has no 'position'; .*groups\.NAME\.policy\.run"):
        coterie.resume(run.path, ["train.total_steps=512", f"train.workers={workers}"], quiet=True)


def test_what_defines_a_run_is_refused_and_nothing_is_touched(tmp_path):
    run = stopped(tmp_path / "run")
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    kept = "a run keeps it from start to end; it is .* here, got .* --fork OUT .* in a new directory"
    refused = {
        "seed=1": f"^seed: {kept}",
        "world.num_agents=3": rf"^world\.num_agents: {kept}",
        "world.max_steps=0": "world: max_steps must be at least 1",
        "world=tictactoe": rf"^world\.name: {kept}",
        "groups.team.agents=[agent_0,agent_1]": rf"^groups\.team\.agents: {kept}",
        "groups.team.parameters=individual": rf"^groups\.team\.parameters: {kept}",
        "groups.team.policy.hidden=[9]": rf"^groups\.team\.policy\.hidden: {kept}",
        "groups.team.policy=random": rf"^groups\.team\.policy\.name: {kept}",
        "groups.team.learner=dqn": rf"^groups\.team\.learner\.name: {kept}",
        "groups.team.learner=none": rf"^groups\.team\.learner\.name: {kept}",
        "groups.team.learner.gamma=0.5": rf"^groups\.team\.learner\.gamma: {kept}",
        "groups.team.preference=cvar": rf"^groups\.team\.preference\.name: {kept}",
        "groups.team.start=elsewhere": rf"^groups\.team\.start\.run: {kept}",
        "groups.more={agents: agent_1, policy: random}": rf"^groups\.more\.agents: {kept}",
        "train.num_envs=8": r"^train\.num_envs: a run is counted in iterations, .*; it is 4 here, got 8",
        "train.shards=2": r"^train\.shards: a run is counted in iterations",
        "train.rollout_steps=16": r"^train\.rollout_steps: a run is counted in iterations",
    }
    assert_refused(run, refused)
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


def test_what_does_not_define_a_run_may_change(tmp_path):
    run = stopped(tmp_path / "run")
    words = [
        *("groups.team.learner.learning_rate=1e-4", "groups.team.learner.entropy_coefficient=0.1", "train.best=last"),
        *("train.total_steps=192", "train.evaluate_every=3", "train.evaluate_episodes=2", "train.checkpoint_every=3"),
        *("train.keep_checkpoints=5", "train.threads=2", "train.stop={return_mean: 1e9}", "experiment=mine"),
        *("groups.team.policy.device=cpu", "groups.team.policy.compiled=false"),
    ]
    assert coterie.resume(run.path, words, quiet=True)
    assert run.summary()["env_steps"] == 192
    assert len(run.history().changes()) >= 10


def test_a_config_that_was_edited_by_hand_changes_no_run(tmp_path):
    run = stopped(tmp_path / "run")
    written(run.config_file, run.config_file.read_text().replace("seed: 0", "seed: 5"))
    with pytest.raises(ConfigError, match=r"^seed: a run keeps it from start to end; it is 0 here, got 5"):
        coterie.resume(run.path, quiet=True)
    rate = run.config().groups["team"].learner.settings.learning_rate
    text = run.config_file.read_text().replace("seed: 5", "seed: 0")
    written(run.config_file, text.replace(f"  learning_rate: {rate}", "  learning_rate: 0.125"))
    assert coterie.resume(run.path, quiet=True)
    assert run.history().described() == [f"from step 128: learner.learning_rate {rate} → 0.125"]


def test_a_finished_run_refuses_what_it_would_ignore(tmp_path):
    run = train(tmp_path / "run", "train.total_steps=64")
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    refused = {
        "world.max_steps=9": r"^world\.max_steps: a run keeps it",
        "groups.team.learner.learning_rate=1e-5": r"learning_rate: has no effect, as .* has finished at 64 steps; add",
        "train.evaluate_episodes=9": r"^train\.evaluate_episodes: has no effect",
    }
    assert_refused(run, refused)
    assert coterie.resume(run.path, ["train.total_steps=64"], quiet=True) is False
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


def test_only_a_run_can_be_resumed(tmp_path):
    with pytest.raises(CoterieError, match=r"is not a run: it has no config\.yaml"):
        coterie.resume(tmp_path)


@pytest.mark.slow
def test_the_number_of_workers_may_change_on_the_way(tmp_path, whole, forked):
    run = stopped(tmp_path / "run")
    coterie.resume(run.path, ["train.workers=1"], quiet=True)
    assert numbers(run) == numbers(whole["grid"][1])
    assert run_cases.files(run.checkpoint_path(256)) == run_cases.files(whole["grid"][1].checkpoint_path(256))


@pytest.mark.slow
def test_tensorboard_shows_every_record_once_after_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = stopped(tmp_path / "run", "train.tensorboard=true")
    coterie.resume(run.path, quiet=True)
    events = EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    shown = [(e.step, e.value) for e in events.Scalars("team/entropy")]
    assert [step for step, _ in shown] == list(range(32, 257, 32))
    assert [v for _, v in shown] == pytest.approx([r["team/entropy"] for r in run.metrics() if "team/entropy" in r])
    assert [e.step for e in events.Scalars("team/eval/return_mean")] == [0, 64, 128, 192, 256]


# The command itself, in a process of its own ---------------------------------------------------------------


def start(path, *words, experiment="gridworld-cooperative", forked=True, session=False):
    """`coterie train` in a process that is forked, or really started anew."""
    base = GRID if experiment == "gridworld-cooperative" else []
    words = ["train", str(experiment), *base, *words, "--out", str(path), "--quiet"]
    if forked:
        return Command(*words, session=session)
    return start_python("from coterie.cli import main; main()", *words)


def start_python(script, *words):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment()}
    return subprocess.Popen([sys.executable, "-c", script, *words], **options)


def wait_for_records(process, path, count):
    file = path / "metrics.jsonl"
    for _ in range(6000):
        if file.exists() and file.read_text().count("\n") >= count:
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    raise AssertionError(f"{count} records did not come")


@pytest.mark.slow
@pytest.mark.parametrize(("game", "records"), [("grid", 15), ("duel", 21)])
def test_kill_9_of_the_command_and_resume(tmp_path, game, records):
    duel = written(tmp_path / "duel.yaml", DUEL)
    experiment = "gridworld-cooperative" if game == "grid" else duel
    words = ["train.total_steps=1600", "train.checkpoint_every=6", "train.evaluate_every=6"]
    process = start(tmp_path / "run", *words, experiment=experiment)
    wait_for_records(process, tmp_path / "run", records)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    run = Run.open(tmp_path / "run")
    assert run.summary() is None
    coterie.resume(run.path, quiet=True)  # another process than the one that began
    assert_same_end(run, train(tmp_path / "whole", *words, experiment=experiment))


def last_step(run):
    """The steps that a signalled run has learned from; an iteration whose evaluation was cut short is unrecorded."""
    unrecorded = run.load_checkpoint("last")["unrecorded"]
    return run.metrics()[-1]["env_steps"] + (32 if unrecorded else 0)


@pytest.mark.slow
def test_ctrl_c_once_finishes_the_iteration_saves_and_says_how_to_resume(tmp_path):
    words = ["train.total_steps=1000000", "train.checkpoint_every=100000"]
    process = start(tmp_path / "run", *words, forked=False)
    wait_for_records(process, tmp_path / "run", 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err.count("\n") == err.count("a second signal leaves at once") == 1
    run = Run.open(tmp_path / "run")
    saved = run.load_checkpoint("last")
    assert f"stopped and saved at {saved['env_steps']:,} steps; continue with: coterie resume {run.path}" in out
    assert saved["env_steps"] == last_step(run) > 0
    assert run.summary() is None
    steps = saved["env_steps"] + 64
    assert coterie.resume(run.path, [f"train.total_steps={steps}"], quiet=True)
    assert [r["iteration"] for r in run.metrics()] == list(range(steps // 32 + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "workers"),
    [(signal.SIGINT, 130, 0), (signal.SIGTERM, 143, 0), (signal.SIGTERM, 143, 1)],
    ids=["SIGINT", "SIGTERM", "SIGTERM to all processes"],
)
def test_a_signalled_run_is_saved_and_resumes_exactly(tmp_path, number, code, workers):
    words = ["train.total_steps=3200", "train.checkpoint_every=40", "train.evaluate_every=20", "train.shards=2"]
    process = start(tmp_path / "run", *words, f"train.workers={workers}", session=True)
    wait_for_records(process, tmp_path / "run", 15)
    os.killpg(process.pid, number) if workers else process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "stopped and saved at" in out
    run = Run.open(tmp_path / "run")
    assert run.summary() is None
    saved = run.load_checkpoint("last")
    assert saved["env_steps"] == last_step(run)
    assert saved["iteration"] % 40  # between the checkpoints of the config
    assert coterie.resume(run.path, quiet=True)
    whole = train(tmp_path / "whole", *words)
    assert numbers(run) == numbers(whole)
    assert results(run) == results(whole)
    last = [one.checkpoint_path(one.steps()[-1]) for one in (run, whole)]
    assert files(last[0]) == files(last[1])


@pytest.mark.slow
def test_from_python_a_training_saves_before_sigterm_ends_the_process(tmp_path):
    words = [*GRID, "train.total_steps=1000000"]
    script = f"""
import coterie
coterie.train("gridworld-cooperative", {words!r}, out={str(tmp_path / "run")!r}, quiet=True)
print("still here")
"""
    process = start_python(script)
    wait_for_records(process, tmp_path / "run", 5)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (-signal.SIGTERM, ""), err
    run = Run.open(tmp_path / "run")
    assert run.load_checkpoint("last")["env_steps"] == last_step(run) > 0


def interrupt_evaluation(monkeypatch, count, number):
    """Send a signal within one of the next evaluations; returns a list of the steps that evaluations play."""
    evaluate, steps, begun = loop.evaluate, [], []

    def counted(*arguments, **options):
        begun.append(None)
        report = options.pop("report")

        def signalled(ended, step):
            steps.append(step)
            if len(begun) == count and step == 2:
                signal.raise_signal(number)
            report(ended, step)

        return evaluate(*arguments, report=signalled, **options)

    monkeypatch.setattr(loop, "evaluate", counted)
    return steps


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("evaluation", [1, 2])
def test_a_signal_in_the_first_evaluations_leaves_at_once_and_nothing_behind(
    tmp_path, monkeypatch, capfd, number, evaluation
):
    steps = interrupt_evaluation(monkeypatch, evaluation, number)
    with pytest.raises(Interrupted, match="nothing is kept"), interruptible(deliver=False) as interrupted:
        train(tmp_path / "run")
    assert interrupted.exit_code == 128 + number
    assert steps[-1] == 2
    assert not (tmp_path / "run").exists()
    assert capfd.readouterr().err.count("a second signal leaves at once") == 1


@pytest.mark.slow
@pytest.mark.parametrize("evaluation", [3, 5, 6, 9], ids=["validation", "last validation", "scores", "baseline"])
def test_a_signal_in_an_evaluation_ends_it_and_the_run_resumes_exactly(tmp_path, monkeypatch, evaluation):
    words = ["train.total_steps=160", "train.evaluate_every=2", "train.checkpoint_every=100"]
    steps = interrupt_evaluation(monkeypatch, evaluation, signal.SIGINT)
    with interruptible(deliver=False):
        run = train(tmp_path / "run", *words)
    assert steps[-1] == 2
    assert run.summary() is None
    assert run.load_checkpoint("last")["iteration"] == (2 if evaluation == 3 else 5)
    monkeypatch.undo()
    assert coterie.resume(run.path, quiet=True)
    whole = train(tmp_path / "whole", *words)
    assert numbers(run) == numbers(whole)
    assert results(run) == results(whole)
    last = [one.checkpoint_path(one.steps()[-1]) for one in (run, whole)]
    assert files(last[0]) == files(last[1])


def insist(process):
    """Ctrl-C again until it leaves: on a busy machine two signals may arrive as one."""
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=20)[1]
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("it does not leave")


@pytest.mark.slow
def test_ctrl_c_twice_leaves_at_once(tmp_path):
    odd = written(tmp_path / "slow.yaml", run_cases.ODD)
    words = ["train.total_steps=1000000", "world.trouble=sleep", "world.after=20", "world.lengths=[4]"]
    process = start(tmp_path / "run", *words, experiment=odd)
    wait_for_records(process, tmp_path / "run", 4)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None  # the iteration takes longer than anybody waits
    err = insist(process)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])["iteration"] == 0
