"""The live page on a real socket: headers, hosts, foreign files, connections that keep it waiting."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time

import pytest

from coterie.app import serve as serving
from coterie.runs.run import Run
from coterie.studies import html, interactive
from coterie.studies.report import curves
from helpers.needs import needs
from helpers.run import train

pytestmark = [needs("starlette", "web"), needs("uvicorn", "web"), needs("plotly", "web")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("live")
    train(made / "mine", "train.total_steps=96")
    return made


@contextlib.contextmanager
def live(folder, host="127.0.0.1"):
    """The server in a thread; gives its port."""
    import uvicorn

    ports, servers = [], []
    run = uvicorn.Server.run

    def keep(server, sockets):
        servers.append(server)
        server.install_signal_handlers = lambda: None
        run(server, sockets=sockets)

    listen = serving.listen

    def listening(*words):
        made = listen(*words)
        ports.append(made.getsockname()[1])
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.Server, "run", keep)
        patch.setattr(serving, "listen", listening)
        thread = threading.Thread(target=serving.serve, args=(folder, host, 0), daemon=True)
        thread.start()
        try:
            wait_until(lambda: servers and servers[0].started)
            yield ports[0]
        finally:
            servers[0].should_exit = True
            thread.join(10)


def wait_until(condition, seconds=10):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


@pytest.fixture(scope="module")
def port(folder):
    with live(folder) as found:
        yield found


def ask(port, path="/", *headers, host=None, start=None, version="1.1"):
    """Send one request byte for byte; returns status, headers in lower case, and body."""
    lines = [start or f"GET {path} HTTP/{version}", *([] if host == "" else [f"Host: {host or f'127.0.0.1:{port}'}"])]
    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.sendall("\r\n".join([*lines, *headers, "Connection: close", "", ""]).encode())
        data = b""
        while more := connection.recv(65536):
            data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    found = dict(line.lower().split(": ", 1) for line in rest)
    return int(first.split()[1]), found, body


def gone(connection, seconds):
    """Seconds until the other side closes the connection."""
    connection.settimeout(seconds)
    begin = time.monotonic()
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return time.monotonic() - begin


@pytest.mark.parametrize("path", ["/", "/run/mine", "/api/runs", "/api/run/mine", "/live.js", "/plotly.js", "/none"])
def test_every_answer_says_what_browsers_may_do_with_it(port, path):
    _, headers, _ = ask(port, path)
    policy = headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in headers


def test_files_of_a_run_are_in_a_sandbox(port):
    status, headers, _ = ask(port, "/file/mine/report.html")
    policy = headers["content-security-policy"]
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert policy.startswith("sandbox allow-scripts allow-downloads; default-src 'none';")
    assert "allow-same-origin" not in policy
    assert "connect-src" not in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_links_and_paths_out_of_a_run_are_not_followed(folder, port):
    run = Run.open(folder / "mine")
    (folder / "secret.html").write_text("secret")
    other = shutil.copytree(run.path, folder / "other")
    links = {
        "outside.html": "/etc/hostname",
        "above.html": "../secret.html",
        "neighbour.html": "../other/report.html",
        "folder": str(folder / "other"),
        "itself.html": "report.html",
    }
    for name, target in links.items():
        os.symlink(target, run.path / name)
    os.mkfifo(run.path / "pipe.html")
    try:
        for name in (*links, "folder/report.html", "pipe.html", "../secret.html", "%2e%2e/secret.html", "none.html"):
            assert ask(port, f"/file/mine/{name}")[0] == 404, name
        assert ask(port, f"/file/{folder}/secret.html")[0] == 404
        assert ask(port, "/file//etc/hostname")[0] == 404
        assert ask(port, "/file/mine/report.html")[0] == 200
    finally:
        for name in (*links, "pipe.html"):
            (run.path / name).unlink()
        shutil.rmtree(other)


def test_a_pipe_in_place_of_a_run_s_file_keeps_nobody_waiting(folder, port):
    run = Run(shutil.copytree(folder / "mine", folder / "pipes"))
    for file in (run.metrics_file, run.summary_file):
        file.unlink()
        os.mkfifo(file)
    try:
        status, _, body = ask(port, "/api/run/pipes")
        assert (status, json.loads(body)["charts"]) == (200, [])
        assert len(json.loads(ask(port, "/api/runs")[2])) == 2
    finally:
        shutil.rmtree(run.path)


HOSTS = {
    "127.0.0.1": 200,
    "127.0.0.1:9": 200,
    "localhost:9": 200,
    "LOCALHOST": 200,
    "[::1]:9": 200,
    "[::1]": 200,
    "elsewhere.org": 400,
    "localhost.elsewhere.org": 400,
    "127.0.0.1.elsewhere.org:9": 400,
    "192.0.2.7": 400,
    "localhost@elsewhere.org": 400,
    ":9": 400,
}


@pytest.mark.parametrize("host", HOSTS)
def test_other_names_are_refused_at_a_loopback_address(port, host):
    status, headers, body = ask(port, "/api/runs", host=host)
    assert status == HOSTS[host]
    assert "content-security-policy" in headers
    if status == 400:
        assert b"'Host'; open http://127.0.0.1" in body


def test_requests_without_one_host_are_refused(port):
    assert ask(port, host="")[0] == 400
    assert ask(port, "/", host="", version="1.0")[0] == 400
    assert ask(port, "/", "Host: 127.0.0.1")[0] == 400


def test_at_other_addresses_names_of_other_sites_are_refused_too(folder):
    from coterie.app.pages import Guard

    guard = Guard(None, "0.0.0.0")
    known = ["192.0.2.7:8000", "[2001:db8::1]:8000", "127.0.0.1", "localhost:1", socket.gethostname(), "10.0.0.1"]
    assert [host for host in known if not guard.knows(host)] == []
    assert [host for host in ("elsewhere.org", "10.0.0.1.elsewhere.org:80", "", ":80") if guard.knows(host)] == []
    assert Guard(None, "gpu.example").knows("GPU.example:8000")
    with live(folder, "0.0.0.0") as port:
        assert ask(port, "/api/runs", host="elsewhere.org")[0] == 400
        assert ask(port, "/api/runs", host="192.0.2.7")[0] == 200


@pytest.mark.parametrize("start", ["POST /api/runs HTTP/1.1", "DELETE /run/mine HTTP/1.1", "PUT / HTTP/1.1"])
def test_nothing_can_be_changed(port, start):
    assert ask(port, start=start)[0] == 405


@pytest.mark.parametrize("start", ["GET", "\x00\xff", "GET /\xe9 HTTP/1.1", "A" * 100_000])
def test_what_is_no_request_ends_the_connection_and_not_the_server(port, start):
    with contextlib.suppress(ConnectionError, IndexError, ValueError):
        assert ask(port, start=start)[0] in (400, 404)
    assert ask(port)[0] == 200


# Connections that keep it waiting ---------------------------------------------------------------------------


@pytest.fixture
def impatient(folder, monkeypatch):
    """A server with short deadlines."""
    from coterie.app import connections

    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(connections, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 8)
    with live(folder) as port:
        yield port


def drip(connection, data):
    def send():
        with contextlib.suppress(OSError):
            for byte in data:
                connection.sendall(bytes([byte]))
                time.sleep(0.1)

    threading.Thread(target=send, daemon=True).start()


GOOD = b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
WAITING = {
    "nothing": lambda connection: None,
    "half a request": lambda connection: connection.sendall(GOOD[:-2]),
    "a request that drips": lambda connection: drip(connection, GOOD[:-2] + b"X: y\r\n" * 50),
    "a second request that drips": lambda connection: (connection.sendall(GOOD), drip(connection, GOOD[:-2] * 20)),
    "a body that drips": lambda connection: (
        connection.sendall(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n"),
        drip(connection, b"x" * 200),
    ),
    "an answer that nobody asks after": lambda connection: connection.sendall(GOOD),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAITING)
def test_a_connection_that_keeps_the_server_waiting_is_closed(impatient, way):
    with socket.create_connection(("127.0.0.1", impatient), 10) as connection:
        WAITING[way](connection)
        assert gone(connection, 5) < 2
    assert ask(impatient)[0] == 200


@pytest.mark.slow
def test_a_reader_that_stops_is_closed(impatient):
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", impatient))
        connection.sendall(b"GET /plotly.js HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")  # megabytes
        time.sleep(1.5)
        connection.settimeout(5)
        size = 0
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(65536):
                size += len(more)
    assert size < 4_000_000  # what the system had taken; the rest was never sent


@pytest.mark.slow
def test_many_connections_leave_room_for_the_next(impatient):
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", impatient), 10)) for _ in range(40)]
        assert ask(impatient)[0] == 200
        assert sum(gone(connection, 5) < 2 for connection in opened) == 40


@pytest.mark.slow
def test_a_browser_that_asks_again_and_again_keeps_its_connection(impatient):
    with socket.create_connection(("127.0.0.1", impatient), 10) as connection:
        for _ in range(6):
            connection.sendall(GOOD)
            data = connection.recv(65536)
            assert data.startswith(b"HTTP/1.1 200 OK")
            while not data.endswith(b"}]"):
                data += connection.recv(65536)
            time.sleep(0.2)


# A browser --------------------------------------------------------------------------------------------------

ATTACK = """<!doctype html><script>
const say = word => document.body.append(word + ";");
addEventListener("load", async () => {
  say("script");
  say("origin:" + self.origin);
  try { const answer = await fetch("/api/runs"); say("READ " + await answer.text()); } catch { say("blocked"); }
  try { localStorage.setItem("x", 1); say("STORED"); } catch { say("no storage"); }
});
</script><body></body>"""


def browser(address, profile):
    """The page's document after its scripts ran."""
    command = [
        *("chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"),
        *("--virtual-time-budget=8000", "--dump-dom", address),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_shows_pages_and_keeps_foreign_ones_apart(folder, port, tmp_path):
    (folder / "mine" / "evil.html").write_text(ATTACK)
    try:
        attacked = browser(f"http://127.0.0.1:{port}/file/mine/evil.html", tmp_path / "profile")
    finally:
        (folder / "mine" / "evil.html").unlink()
    assert "script;origin:null;blocked;no storage;" in attacked
    shown = browser(f"http://127.0.0.1:{port}/run/mine", tmp_path / "profile")
    assert "js-plotly-plot" in shown  # charts are drawn
    assert '<p id="error" class="error"></p>' in shown
    library = interactive._packed(interactive.library_file())  # what `interactive.scripts` adds outside of tests
    scripts = [f"<script id=plotly type=text/plain>{library}</script><script>{interactive.SCRIPT}</script>"]
    parts = [interactive.figure(chart, "<p>a chart</p>") for chart in curves.charts([Run.open(folder / "mine")])]
    html.write_page(folder / "mine" / "charts.html", "as in a report", [*parts, *scripts])
    assert "js-plotly-plot" in browser(f"http://127.0.0.1:{port}/file/mine/charts.html", tmp_path / "profile")
