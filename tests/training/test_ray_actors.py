"""Workers as Ray actors: the same numbers on several nodes, and failures that have a name."""

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
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
        play.play(1).decisions["all"].reward[:] = 0
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
            WorkerError,
            match=r"the Ray actor playing shards \[0\]: its process .* or crashed; 'coterie resume'",
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
            with pytest.raises(WorkerError, match=r"shards \[0\]: its answer was lost with its machine; 'coterie"):
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


def test_waiting_for_cores_is_said_and_ends(cluster, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(ray_actors, "PATIENCE", 0.0)
    others = started(cluster, tmp_path, "train.workers=2", "train.shards=2", "train.ray.cpus=2")
    ray = others.transport.ray
    try:
        assert "train.ray: still waiting for 2 of 2 workers" in caplog.text
        monkeypatch.setattr(ray_actors, "START", 0.0)
        with pytest.raises(WorkerError, match=r"1 of 1 workers have not started within 2 s \(train\.timeout\)"):
            started(cluster, tmp_path, "train.workers=1", "train.timeout=2")
        assert ray.is_initialized()
    finally:
        others.close()


def test_a_world_that_hangs_in_an_actor_is_named(cluster, tmp_path):
    play = started(cluster, tmp_path, "world.trouble=sleep", "world.after=0", "train.workers=1", "train.timeout=3")
    try:
        with pytest.raises(WorkerError, match=r"shards \[0\]: helpers\.run:Odd, all copies, step 1: no sign of life"):
            play.play(1)
    finally:
        play.close()


def test_a_killed_actor_is_one_sentence_and_nothing_of_ray(cluster, tmp_path, capfd):
    play = started(cluster, tmp_path, "world.trouble=sleep", "world.after=0", "train.workers=1")
    actor, ray = play.transport.actors[0], play.transport.ray
    pid = ray.get(actor.__ray_call__.options(concurrency_group="heartbeat").remote(lambda _: os.getpid()))
    try:
        threading.Timer(2.0, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(WorkerError, match=r"shards \[0\]: its process was killed, perhaps for want of memory"):
            play.play(1)
        time.sleep(3)  # Ray's report comes late
    finally:
        play.close()
    assert "raylet" not in "".join(capfd.readouterr())


def test_a_removed_machine_is_named(tmp_path):
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (environment() | {"RAY_USAGE_STATS_ENABLED": "0"}).items():
            patch.setenv(name, value)
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        node = made.add_node(num_cpus=1)
        made.wait_for_nodes()
        play = started(made.address, tmp_path, "world.trouble=sleep", "world.after=0", "train.workers=1")
        try:
            threading.Timer(2.0, made.remove_node, (node,), {"allow_graceful": False}).start()
            with pytest.raises(WorkerError, match=r"shards \[0\]: its machine was removed from the cluster, or cannot"):
                play.play(1)
        finally:
            play.close()
            made.shutdown()


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
    with answering(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))) as there:  # the first frame of a server of gRPC
        ray_actors.connect(schema.RaySettings(address=there), 1)
    for address in (there, "127.0.0.1:70000"):
        with pytest.raises(CoterieError, match=rf"train\.ray\.address: no Ray cluster answers at '{address}'; start"):
            ray_actors.connect(schema.RaySettings(address=address), 1)
    assert asked == [there]


@contextlib.contextmanager
def answering(*said):
    """The address of a service that says this to whoever connects, and then waits."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as service:
        held = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    held.append(service.accept()[0])
                    for part in said:
                        held[-1].sendall(part)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{service.getsockname()[1]}"
        service.shutdown(socket.SHUT_RDWR)  # ends the thread's waiting


@pytest.mark.parametrize("said", [(), (b"SSH-2.0-OpenSSH_9.6\r\n",), (b"-ERR", b" unknown command\r\n")])
def test_another_service_at_the_address_is_named_at_once(said, monkeypatch):
    monkeypatch.setattr(ray_actors, "LISTENING", 1.0)
    with answering(*said) as there, pytest.raises(CoterieError, match=f"another service than Ray uses '{there}'; 'ray"):
        ray_actors.connect(schema.RaySettings(address=there), 1)


def test_a_real_cluster_is_no_other_service(cluster):
    ray_actors.demand_listener(cluster)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            RuntimeError(
                "Version mismatch: The cluster was started with:\n    Ray: 2.40.0\n    Python: 3.12.1\nThis process "
                "on node was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
            ),
            "train.ray.address: 'h:1' runs Ray 2.40.0 with Python 3.12.1, this process Ray 2.60.0 with Python 3.11.7; "
            "both need the same versions",
        ),
        (
            Exception("The current node timed out during startup. This could happen because some of the raylet failed"),
            "train.ray.address: Ray did not start at 'h:1' in time; the machine may be overloaded or out of memory; "
            "try again, or play without Ray: train.ray=null",
        ),
        (
            OSError("No space.\nMany\nlines"),
            "train.ray.address: Ray cannot be used at 'h:1': No space; its logs are in /tmp/ray/session_latest/logs",
        ),
    ],
)
def test_a_start_that_fails_is_one_sentence(error, sentence, monkeypatch):
    import ray

    def fail(address, **_):
        raise error

    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setattr(ray_actors, "demand_listener", lambda address: None)
    with pytest.raises(CoterieError) as caught:
        ray_actors.connect(schema.RaySettings(address="h:1"), 1)
    assert str(caught.value) == sentence


def test_reasons_are_one_sentence():
    said = "The actor died.\nThe actor is dead because its worker process has died. Worker exit type: X Some causes."
    assert ray_actors.reason(RuntimeError(said)) == "its process was killed, perhaps for want of memory, or crashed"
    said = "The actor died because its node has died. Node Id: 3673\n\tthe actor's node was terminated: SIGTERM"
    assert ray_actors.reason(RuntimeError(said)) == ray_actors.UNREACHABLE
    said = "Task was killed due to the node running low on memory.\nMemory on the node was 15 GB / 16 GB."
    assert ray_actors.reason(RuntimeError(said)).startswith("its machine ran out of memory; fewer workers")
    assert ray_actors.reason(RuntimeError("Something\n else. And why.")) == "Something else"


def test_ray_settings_reject_nonsense():
    for words in ({"address": ""}, {"cpus": -1.0}, {"gpus": -0.5}):
        with pytest.raises(ValueError, match=next(iter(words))):
            schema.RaySettings(**words)
    assert np.isclose(schema.RaySettings().cpus, 1)
