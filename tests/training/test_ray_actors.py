"""Workers as Ray actors: the same numbers on several nodes, and failures that have a name."""

import contextlib
import pickle
import signal
import socket
import sys
import time

import numpy as np
import pytest
import torch

import coterie
from coterie.config import schema
from coterie.core.types import CoterieError
from coterie.nn.threads import fixed_threads
from coterie.training import build, ray_actors, workers
from coterie.training.workers import Request, WorkerError
from helpers.needs import needs
from helpers.processes import Command
from helpers.resume import stopped
from helpers.run import DUEL, ODD, assert_same_end, environment, train, written

pytestmark = [needs("ray", "ray"), pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with two cores each; they are processes of this machine, as different as those of two machines."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (environment() | {"RAY_USAGE_STATS_ENABLED": "0"}).items():
            patch.setenv(name, value)
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        made.add_node(num_cpus=2)
        made.wait_for_nodes()
        yield made.address
        made.shutdown()


def started(cluster, tmp_path, *words, text=ODD):
    loaded = schema.load(str(written(tmp_path / "odd.yaml", text)), [f"train.ray.address={cluster}", *words])
    groups = build.build_groups(loaded, build.build_world(loaded.world, 1))
    return workers.start(loaded, groups)


def test_results_do_not_depend_on_the_nodes_that_play(cluster, tmp_path):
    duel = written(tmp_path / "duel.yaml", DUEL)
    here = train(tmp_path / "here", experiment=duel)
    there = train(tmp_path / "there", "train.workers=2", f"train.ray.address={cluster}", experiment=duel)
    assert_same_end(here, there)


def test_a_run_that_was_stopped_here_goes_on_at_a_cluster(cluster, tmp_path):
    words = ["train.shards=2", "train.total_steps=256"]
    run = stopped(tmp_path / "run", *words, at=5)
    assert coterie.resume(run.path, ["train.workers=1", f"train.ray.address={cluster}"], quiet=True)
    assert_same_end(run, train(tmp_path / "whole", *words))


def test_every_node_plays_and_shares_no_memory(cluster, tmp_path):
    play = started(cluster, tmp_path, "train.shards=2", "train.workers=2")
    try:
        play.play(1).experiences["all"].reward[:] = 0
        states = play.save()
        states[0]["tally"]["length"][:] = 0
        play.load(states)
        play.play(2)  # the worlds step in the arrays that were loaded
        first, second = play.transport.exchange([Request("play", (OnlyHere(),)), Request("save")])
        assert (first.failed, second.failed) == (True, False)
        assert "No module named" in first.value
        ray = play.transport.ray
        asked = [
            one.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()) for one in play.transport.actors
        ]
        assert len(set(ray.get(asked))) == 2
    finally:
        play.close()


class OnlyHere:
    """The module of this class is not on the search path of other processes."""


def test_actors_keep_the_number_of_threads_that_the_config_says(tmp_path):
    loaded = schema.load(str(written(tmp_path / "odd.yaml", ODD)), ["train.threads=2"])
    with fixed_threads(1):
        service = ray_actors.PickledService(pickle.dumps((loaded, [0])))
        for _ in range(2):
            assert not pickle.loads(service.answer(pickle.dumps(Request("save")))).failed
            assert torch.get_num_threads() == 2
        del service  # its limits end before those of this test


def test_failures_are_reported_with_the_shards(cluster, tmp_path):
    play = started(cluster, tmp_path, "world.trouble=raise", "train.workers=1")
    try:
        with pytest.raises(
            WorkerError, match=r"the worker playing shards \[0\] failed: your code raised Run"
        ) as caught:
            play.play(1)
        assert "RuntimeError: the odd world fell over" in str(caught.value)
    finally:
        play.close()


def test_an_actor_that_dies_is_named(cluster, tmp_path):
    play = started(cluster, tmp_path, "world.trouble=exit", "train.workers=1")
    try:
        with pytest.raises(
            WorkerError, match=r"the Ray actor playing shards \[0\] died \(Worker .*\); 'coterie resume'"
        ):
            play.play(1)
    finally:
        play.close()


def test_an_answer_that_is_lost_with_its_node_is_named(cluster, tmp_path, monkeypatch):
    import ray

    play = started(cluster, tmp_path, "train.workers=1")

    def lose(_):
        raise ray.exceptions.ObjectLostError("a1" * 28, None, "")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(ray, "get", lose)
            with pytest.raises(WorkerError, match=r"shards \[0\] died \(Failed to retrieve .*\); 'coterie resume'"):
                play.play(1)
    finally:
        play.close()


def test_a_local_cluster_ends_with_its_command_which_saves_at_sigterm(tmp_path):
    odd, run = written(tmp_path / "odd.yaml", ODD), tmp_path / "run"
    words = ["train.total_steps=1e7", "train.workers=1", "train.ray.cpus=1", "train.evaluate_every=1000"]
    command = Command("train", odd, *words, "--out", run, session=True)
    while not any(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*[0-9]")):
        assert command.poll() is None
        time.sleep(0.1)
    command.send_signal(signal.SIGTERM)
    out, _ = command.communicate(timeout=60)
    assert command.returncode == 143
    assert "stopped and saved at" in out


def test_waiting_for_cores_is_said(cluster, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(ray_actors, "PATIENCE", 0.0)
    started(cluster, tmp_path, "train.workers=1").close()
    assert "train.ray: still waiting for 1 of 1 workers" in caplog.text


# Connections -------------------------------------------------------------------------------------------------


def test_the_connection_of_a_script_stays(cluster):
    before, settings = signal.getsignal(signal.SIGTERM), schema.RaySettings(address=cluster)
    ray, opened = ray_actors.connect(settings, 1)
    try:
        assert opened
        assert signal.getsignal(signal.SIGTERM) is before  # Ray installs one of its own
        assert not ray_actors.connect(settings, 1)[1]
        actors = ray_actors.RayActors(None, settings, [])
        actors.close()
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_nothing_is_left_of_a_refused_start(tmp_path, cluster):
    import ray

    with pytest.raises(CoterieError, match=r"train\.ray: the cluster has room for 0 of 1 workers with 3 CPU each"):
        started(cluster, tmp_path, "train.workers=1", "train.ray.cpus=3")  # two nodes of two cores
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("settings", "workers", "room"),
    [
        ({}, 5, 4),
        ({"cpus": 0.5}, 9, 8),
        ({"cpus": 3}, 2, 1),
        ({"gpus": 1}, 2, 1),
        ({"cpus": 0, "gpus": 0.25}, 5, 4),
    ],
)
def test_more_workers_than_the_nodes_hold_are_refused(settings, workers, room):
    nodes = [
        {"Alive": True, "Resources": {"CPU": 3.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {"CPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    asked = schema.RaySettings(**settings)
    ray_actors.demand_room(nodes, asked, room)
    with pytest.raises(CoterieError, match=rf"room for {room} of {workers} workers"):
        ray_actors.demand_room(nodes, asked, workers)
    ray_actors.demand_room(nodes, schema.RaySettings(cpus=0), 1000)


# Refused before anything starts ------------------------------------------------------------------------------


def test_ray_without_workers_is_refused(tmp_path):
    with pytest.raises(schema.ConfigError, match=r"train: ray needs workers: set train\.workers"):
        schema.load(str(written(tmp_path / "odd.yaml", ODD)), ["train.ray.cpus=1"])


def test_a_machine_without_ray_is_told_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CoterieError, match=r"train\.ray needs the package ray: pip install 'coterie\[ray\]'"):
        started("auto", tmp_path, "train.workers=1")


def test_an_address_without_a_cluster_is_named(monkeypatch):
    import ray

    def fail(address, **_):
        raise ConnectionError("nobody")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(
        CoterieError, match=r"train\.ray\.address: no Ray cluster answers at 'auto'; start one with 'ray"
    ):
        ray_actors.connect(schema.RaySettings(address="auto"), 1)


def test_an_address_where_nobody_listens_is_refused_at_once(monkeypatch):
    import ray

    asked = []
    monkeypatch.setattr(ray, "init", lambda address, **_: asked.append(address))  # Ray itself would try for minutes
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        there = f"127.0.0.1:{taken.getsockname()[1]}"
        ray_actors.connect(schema.RaySettings(address=there), 1)
    for address in (there, "127.0.0.1:70000"):
        with pytest.raises(CoterieError, match=rf"train\.ray\.address: no Ray cluster answers at '{address}'; start"):
            ray_actors.connect(schema.RaySettings(address=address), 1)
    assert asked == [there]


def test_reasons_are_one_sentence():
    said = "The actor died.\nWorker exit type: SYSTEM_ERROR Worker exit detail: Worker was lost. Some causes: many."
    assert ray_actors.reason(RuntimeError(said)) == "Worker was lost"
    assert ray_actors.reason(RuntimeError("The actor was killed.")) == "The actor was killed"


def test_ray_settings_reject_nonsense():
    for words in ({"address": ""}, {"cpus": -1.0}, {"gpus": -0.5}):
        with pytest.raises(ValueError, match=next(iter(words))):
            schema.RaySettings(**words)
    assert np.isclose(schema.RaySettings().cpus, 1)
