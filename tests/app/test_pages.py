"""The live page: what it lists, shows and refuses, without a browser."""

import contextlib
import json
import logging
import os
import shutil
import socket
import threading
import urllib.request

import pytest

from coterie.app.serve import listen, said_once
from coterie.runs import index as run_index
from coterie.runs.provenance import locked
from coterie.runs.run import Run
from helpers.needs import needs
from helpers.processes import Command
from helpers.run import train

pytestmark = [needs("starlette", "web"), needs("httpx", "web"), needs("plotly", "web")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("live")
    train(made / "sweep" / "first run", "train.total_steps=96", "seed=3")
    run_index.tag([Run.open(made / "sweep" / "first run")], ["good"], [])
    (made / "secret.html").write_text("not a run's")
    return made


@pytest.fixture
def client(folder):
    from starlette.testclient import TestClient

    from coterie.app.pages import make_app

    return TestClient(make_app(folder), base_url="http://127.0.0.1")


def test_the_list_has_every_run(client, folder):
    (row,) = client.get("/api/runs").json()
    assert row["name"] == "sweep/first run"
    assert (row["state"], row["steps"], row["seed"], row["tags"]) == ("finished", 96, 3, ["good"])
    assert row["score"] == run_index.describe(Run.open(folder / "sweep" / "first run")).score
    assert "<div id=runs" in client.get("/").text


def test_a_run_has_its_curves_scores_and_files(client, folder):
    run = Run.open(folder / "sweep" / "first run")
    found = client.get("/api/run/sweep/first%20run").json()
    assert (found["state"], found["steps"], found["total_steps"]) == ("finished", 96, 96)
    assert found["seconds"] == run.metrics()[-1]["wall_s"]
    curve = found["charts"][0]["data"][0]
    records = [record for record in run.metrics() if "team/eval/return_mean" in record]
    assert curve["x"] == [record["env_steps"] for record in records]
    assert curve["y"] == pytest.approx([record["team/eval/return_mean"] for record in records], rel=1e-5)
    assert "trained (best)" in found["scores"]
    assert found["files"] == {"report": "report.html"}
    report = client.get("/file/sweep/first%20run/report.html")
    assert report.text == (run.path / "report.html").read_text(encoding="utf-8")
    page = client.get("/run/sweep/first%20run").text
    assert 'data-name="sweep/first run"' in page
    assert "train.total_steps" in page  # a setting that differs


def test_the_newest_video_is_linked(client, folder):
    run = Run.open(folder / "sweep" / "first run")
    (run.path / "videos" / "eval").mkdir(parents=True)

    def linked(*names):
        for name in names:
            (run.path / "videos" / "eval" / name).write_bytes(b"GIF89a")
        return client.get("/api/run/sweep/first%20run").json()["files"].get("video")

    try:
        assert linked() is None
        first = linked("step-000000000096.gif", "step-000000000032.gif")
        assert first == "videos/eval/step-000000000096.gif"
        assert linked("step-000000000096.mp4") == "videos/eval/step-000000000096.mp4"
        assert client.get(f"/file/sweep/first%20run/{first}").content == b"GIF89a"
    finally:
        shutil.rmtree(run.path / "videos")


def test_a_page_that_is_up_to_date_gets_nothing_again(client):
    address = "/api/run/sweep/first%20run"
    version = client.get(address).json()["version"]
    assert client.get(address, params={"version": version}).json() == {"version": version}


def test_a_run_that_trains_grows(client, folder):
    run = train(folder / "growing", "train.total_steps=96")
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    run.metrics_file.write_bytes(b"".join(lines[:2]))
    run.summary_file.unlink()
    try:
        with locked(run):
            first = client.get("/api/run/growing").json()
            assert first["state"] == "running"
            assert "The run has not finished" in first["scores"]
            run.metrics_file.write_bytes(b"".join(lines))
            later = client.get("/api/run/growing", params={"version": first["version"]}).json()
        assert later["steps"] > first["steps"]
        assert len(later["charts"][0]["data"][0]["x"]) > len(first["charts"][0]["data"][0]["x"])
        stopped = client.get("/api/run/growing", params={"version": later["version"]}).json()
        assert stopped["state"] == "stopped"
        run.metrics_file.unlink()
        assert client.get("/api/run/growing").json()["charts"] == []
        run.metrics_file.write_text("{}\n")
        damaged = client.get("/api/run/growing")
        assert (damaged.status_code, "has no 'env_steps'" in damaged.json()["error"]) == (422, True)
    finally:
        run_index.delete(run)


def test_one_damaged_run_does_not_hide_the_others(client, folder):
    whole, made = folder / "sweep" / "first run", []
    damage = {
        "config.yaml": "{",
        "provenance.json": '[{"command": "", "date": 5, "version": "", "python": "", "machine": ""}]',
        "summary.json": '{"env_steps": "many"}',
    }
    for file, text in damage.items():
        made.append(Run(shutil.copytree(whole, folder / f"damaged {file}")))
        (made[-1].path / file).write_text(text)
    made.append(Run(shutil.copytree(whole, folder / "nan")))
    summary = made[-1].summary()
    summary["evaluation"]["groups"]["team"]["return_mean"] = float("nan")
    made[-1].summary_file.write_text(json.dumps(summary))
    shutil.rmtree(made[0].checkpoints)  # its summary has the steps as well
    try:
        rows = {row["name"]: row for row in client.get("/api/runs").json()}
        assert len(rows) == 5
        assert rows["nan"]["score"] is None
        assert {row["steps"] for row in rows.values()} == {96}
        page = client.get("/run/damaged%20config.yaml")
        assert (page.status_code, page.headers["content-type"]) == (422, "text/html; charset=utf-8")
        assert "config.yaml: not readable as YAML" in page.text
        assert client.get("/api/run/damaged%20config.yaml").json()["error"].startswith("config.yaml: not readable")
    finally:
        for run in made:
            run_index.delete(run)


def test_a_run_that_vanishes_meanwhile_is_left_out(client, folder, monkeypatch, caplog):
    copied = Run(shutil.copytree(folder / "sweep" / "first run", folder / "vanishing"))
    describe = run_index.describe

    def vanish(run):
        if run.path == copied.path:
            raise FileNotFoundError(2, "No such file or directory", str(run.summary_file))
        return describe(run)

    monkeypatch.setattr(run_index, "describe", vanish)
    try:
        assert [row["name"] for row in client.get("/api/runs").json()] == ["sweep/first run"]
        assert "vanishing' is left out: [Errno 2] No such file" in caplog.text
    finally:
        run_index.delete(copied)
    gone = client.get("/api/run/vanishing")
    assert (gone.status_code, gone.json()["error"][:28]) == (404, "there is no run 'vanishing' ")


def test_a_name_that_no_page_can_show_is_left_out(client, folder, caplog):
    copied = Run(shutil.copytree(folder / "sweep" / "first run", folder / os.fsdecode(b"r\xe9sum\xe9")))
    try:
        assert [row["name"] for row in client.get("/api/runs").json()] == ["sweep/first run"]
        assert "is left out: 'utf-8' codec can't encode" in caplog.text
    finally:
        run_index.delete(copied)


def test_a_folder_may_be_a_run_itself(folder):
    from starlette.testclient import TestClient

    from coterie.app.pages import make_app

    client = TestClient(make_app(folder / "sweep" / "first run"), base_url="http://127.0.0.1")
    assert [row["name"] for row in client.get("/api/runs").json()] == ["."]
    assert "<h1>first run</h1>" in client.get("/run/").text
    assert client.get("/api/run/").json()["files"] == {"report": "report.html"}
    assert client.get("/file/report.html").status_code == 200


def test_pages_beside_a_config_above_the_folder_are_not_served(folder):
    from starlette.testclient import TestClient

    from coterie.app.pages import make_app

    inner = folder / "sweep" / "first run" / "notes"
    inner.mkdir()
    (inner / "secret.html").write_text("not a run's")
    try:
        client = TestClient(make_app(inner), base_url="http://127.0.0.1")
        assert client.get("/file/secret.html").status_code == 404
    finally:
        shutil.rmtree(inner)


@pytest.mark.parametrize(
    "address",
    [
        "/run/none",
        "/run/%00",
        "/file/%00",
        "/api/run/sweep",
        "/api/run/%2e%2e/live",
        "/file/secret.html",  # of no run
        "/file/sweep/first%20run/config.yaml",  # neither report nor video
        "/file/sweep/first%20run/none.html",
        "/file/sweep/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/nothing",
    ],
)
def test_what_is_no_run_is_not_found(client, address):
    assert client.get(address).status_code == 404


def test_pages_of_other_sites_cannot_read_it(folder):
    from starlette.testclient import TestClient

    from coterie.app.pages import make_app

    assert TestClient(make_app(folder), base_url="http://elsewhere.org").get("/api/runs").status_code == 400
    assert TestClient(make_app(folder, "0.0.0.0"), base_url="http://elsewhere.org").get("/api/runs").status_code == 200


def test_scripts_are_served(client):
    assert "Plotly.react" in client.get("/live.js").text
    assert len(client.get("/plotly.js").content) > 1e6


# The command ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_serves_until_it_is_stopped(folder):
    command = Command("live", folder, "--port", "0", session=True)
    try:
        while not (lines := command.out.splitlines()):
            assert command.poll() is None
            threading.Event().wait(0.1)
        address = lines[0].partition(" at ")[2].split()[0]
        with urllib.request.urlopen(f"{address}api/runs") as answer:
            assert json.load(answer)[0]["name"] == "sweep/first run"
    finally:
        command.send_signal(2)
    _, said = command.communicate(timeout=20)
    assert (command.returncode, said) == (0, "")


def test_an_address_is_printed_once_it_answers():
    with contextlib.closing(listen("127.0.0.1", 0)) as made:
        socket.create_connection(made.getsockname()).close()


def test_wrong_options_are_named(folder, coterie_):
    code, _, err = coterie_("live", folder / "none")
    assert (code, "is not a directory; name one with runs below it" in err) == (1, True)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        code, _, err = coterie_("live", folder, "--port", str(taken.getsockname()[1]))
    assert (code, "is in use; choose another" in err) == (1, True)
    code, _, err = coterie_("live", folder, "--host", "192.0.2.77", "--port", "0")
    assert (code, "--host: '192.0.2.77' is no address of this machine" in err) == (1, True)


def test_a_warning_is_said_once(caplog):
    log = logging.getLogger("coterie")
    for _ in range(2):
        with said_once():
            for file in ("one", "two", "one"):
                log.warning("'%s' is damaged", file)
    assert [record.getMessage() for record in caplog.records] == ["'one' is damaged", "'two' is damaged"] * 2


def test_a_missing_package_is_named(folder, coterie_, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    code, _, err = coterie_("live", folder)
    assert (code, "'coterie live' needs uvicorn: pip install 'coterie[web]'" in err) == (1, True)
