"""Requests to servers that drip, never end, lie about lengths, compress, redirect: bounded time, bounded memory."""

import gzip
import json
import os
import socket
import threading
import time
import tracemalloc

import pytest

from coterie.lm import Sampling, load
from coterie.lm.ask.http import HttpSettings
from coterie.lm.ask.http_client import Client, RequestFailed
from coterie.lm.ask.interface import Rejected, RetriesExhausted
from coterie.lm.ask.retry import RetrySettings
from helpers.hostile_server import HostileServer, drip, endless, head, whole

GOOD = {"choices": [{"text": "yes", "finish_reason": "stop"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
ONCE = RetrySettings(attempts=1)
SECRET = "sk-very-secret"


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    made = []

    def start(script, **options):
        made.append(HostileServer(script, **options))
        return made[-1]

    yield start
    for server in made:
        server.close()


def open_lm(server, **changes):
    settings = {"timeout": 0.5, "logprobs": False} | changes
    return load(server.url, retry=ONCE, http=HttpSettings(**settings))


SLOW = {
    "headers": lambda connection, request: drip(connection, head("X-Slow: " + "x" * 1000)),
    "body": lambda connection, request: (
        connection.sendall(head("Content-Length: 1000")),
        drip(connection, b" " * 999),
    ),
    "chunks": lambda connection, request: (
        connection.sendall(head("Transfer-Encoding: chunked")),
        drip(connection, b"1\r\nx\r\n" * 200),
    ),
    "continues": lambda connection, request: endless(connection, head(status="100 Continue")),
    "nothing": lambda connection, request: time.sleep(2),
}
CALLS = {
    "completion": lambda lm: lm.complete(["Is it?"]),
    "chat": lambda lm: lm.complete([[{"role": "user", "content": "Is it?"}]]),
    "scores": lambda lm: lm.score(["Is it?"], [[" yes", " no"]]),
    "embeddings": lambda lm: lm.embed(["Is it?"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("pace", SLOW)
def test_a_request_ends_with_its_time_limit_however_slowly_the_answer_drips(serve, pace, call):
    lm = open_lm(serve(SLOW[pace]))
    begin = time.monotonic()
    with pytest.raises(RetriesExhausted, match=r"no answer within 0.5 s|does not end"):
        CALLS[call](lm)
    assert time.monotonic() - begin < 1.5
    lm.close()


@pytest.mark.slow
def test_the_list_of_models_has_the_same_time_limit(serve):
    lm = open_lm(serve(SLOW["body"], lists=False))
    begin = time.monotonic()
    with pytest.raises(RetriesExhausted, match="no answer within"):
        lm.complete(["Is it?"])
    assert time.monotonic() - begin < 1.5
    lm.close()


def test_a_name_that_is_looked_up_for_ever_ends_with_the_time_limit(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(3) or [])
    begin = time.monotonic()
    with pytest.raises(RequestFailed, match=r"no answer within 0\.2 s") as caught:
        Client("http://far.example/v1", 0.2, {}).request("GET", "http://far.example/v1/models", None, 100)
    assert time.monotonic() - begin < 1
    assert not caught.value.sent


BOMBS = {
    "a gigabyte with its length": lambda c, r: (c.sendall(head(f"Content-Length: {10**9}")), endless(c, b" " * 65536)),
    "no length and no end": lambda c, r: (c.sendall(head("Connection: close")), endless(c, b" " * 65536)),
    "chunks without end": lambda c, r: (
        c.sendall(head("Transfer-Encoding: chunked")),
        endless(c, b"10000\r\n" + b" " * 65536 + b"\r\n"),
    ),
    "a chunk of a negative size": lambda c, r: (
        c.sendall(head("Transfer-Encoding: chunked") + b"-1\r\n"),
        endless(c, b" " * 65536),
    ),
    "headers without end": lambda c, r: (
        c.sendall(b"HTTP/1.1 200 OK\r\n"),
        endless(c, b"X: " + b"y" * 60000 + b"\r\n"),
    ),
    "trailers without end": lambda c, r: (
        c.sendall(head("Transfer-Encoding: chunked") + b"0\r\n"),
        endless(c, b"X: " + b"y" * 60000 + b"\r\n"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_endless_answers_take_little_memory(serve, bomb):
    server = serve(BOMBS[bomb])
    lm = open_lm(server, timeout=5.0)
    begin = time.monotonic()
    tracemalloc.start()
    with pytest.raises(RetriesExhausted, match=r"more than [\d,]+ bytes|does not end|connection broke"):
        lm.complete(["Is it?"], sampling=Sampling(max_tokens=5))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 * 2**20
    assert time.monotonic() - begin < 4
    lm.close()


BROKEN = {
    "a length that is too large": lambda c, r: c.sendall(head("Content-Length: 10000") + json.dumps(GOOD).encode()),
    "a length that is too small": lambda c, r: c.sendall(head("Content-Length: 20") + json.dumps(GOOD).encode()),
    "a negative length": lambda c, r: c.sendall(head("Content-Length: -5") + b"{"),
    "a length that is a word": lambda c, r: c.sendall(head("Content-Length: long") + b"{"),
    "a status that is none": lambda c, r: c.sendall(b"HTTP/1.1 yes\r\n\r\n"),
    "another protocol": lambda c, r: c.sendall(b"SSH-2.0-OpenSSH_9\r\n\r\n"),
    "bytes that are not UTF-8": lambda c, r: c.sendall(whole(b'{"choices": [{"text": "\xff\xfe\xfa"}]}')),
    "deep nesting": lambda c, r: c.sendall(whole(b"[" * 500_000)),
    "not a number": lambda c, r: c.sendall(whole(b'{"choices": [{"text": "yes"}], "usage": NaN}')),
    "a number of many digits": lambda c, r: c.sendall(whole(b'{"choices": ' + b"9" * 10000 + b"}")),
    "nothing": lambda c, r: None,
    "a gzip bomb": lambda c, r: c.sendall(whole(gzip.compress(b" " * 10**8), "Content-Encoding: gzip")),
    "a text that is longer than asked": lambda c, r: c.sendall(whole({"choices": [{"text": "y" * 500_000}]})),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_broken_answers_are_counted_as_none(serve, broken):
    lm = open_lm(serve(BROKEN[broken]))
    with pytest.raises(RetriesExhausted, match=r"gave up after 1 attempts: \w"):
        lm.complete(["Is it?"], sampling=Sampling(max_tokens=5))
    assert lm.metrics()["lm/failures"] == 1
    lm.close()


@pytest.mark.parametrize("length", ["1000000000", "9" * 400, "²", "soon", "-5", "nan", "1e9"])
def test_waits_that_nobody_would_wait_end_at_once(serve, length):
    lm = open_lm(serve(lambda c, r: c.sendall(whole({}, f"Retry-After: {length}", status="429 Busy"))))
    begin = time.monotonic()
    with pytest.raises(RetriesExhausted, match="429"):
        lm.complete(["Is it?"])
    assert time.monotonic() - begin < 1
    lm.close()


def test_a_wait_beyond_the_limit_is_not_waited(serve):
    server = serve(lambda c, r: c.sendall(whole({}, "Retry-After: 1000000000", status="429 Busy")))
    lm = load(server.url, retry=RetrySettings(attempts=3), http=HttpSettings(timeout=0.5))
    with pytest.raises(RetriesExhausted, match=r"asks for a wait of 1e\+09 s, retry.max_wait is 30 s"):
        lm.complete(["Is it?"])
    assert len(server.requests) == 1
    lm.close()


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_redirects_carry_no_key_to_another_host(serve, status):
    other = serve(lambda c, r: c.sendall(whole(GOOD)), lists=False)
    server = serve(lambda c, r: c.sendall(whole({}, f"Location: {other.url}/completions", status=status)))
    lm = open_lm(server)
    with pytest.raises(Rejected, match=r"redirects to http://127.0.0.1:\d+/v1/completions; .* set the address"):
        lm.complete(["Is it?"])
    assert other.requests == []
    assert f"Bearer {SECRET}".encode() in server.requests[0]
    lm.close()


def test_nothing_of_the_environment_but_the_key_is_sent(serve, monkeypatch):
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.setenv(name, "X-Other: of-this-user")
    server = serve(lambda c, r: c.sendall(whole(GOOD)))
    lm = open_lm(server)
    lm.complete(["Is it?"])
    assert b"of-this-user" not in server.requests[0]
    lm.close()


def test_a_key_that_a_server_repeats_reaches_nothing(serve, tmp_path, caplog):
    spelled = "".join(f"\\u{ord(sign):04x}" for sign in SECRET)
    answer = b'{"choices": [{"text": "%s %s", "finish_reason": "%s"}]}' % (SECRET.encode(), spelled.encode(), b"x" * 99)
    server = serve(lambda c, r: c.sendall(whole(answer)))
    lm = load(server.url, cache=tmp_path / "a.db", retry=ONCE, http=HttpSettings(timeout=0.5))
    ((found,),) = lm.complete(["Is it?"])
    lm.close()
    assert (found.text, found.finish) == ("*** ***", "stop")
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"***" in stored
    assert SECRET.encode() not in stored
    server.script = lambda c, r: c.sendall(whole(f"\x1b[2J{SECRET}\n".encode(), status=f"401 {SECRET}"))
    lm = open_lm(server)
    with pytest.raises(Rejected) as caught:
        lm.complete(["Is that?"])
    assert str(caught.value) == "status 401: [2J***"
    assert SECRET not in caplog.text
    lm.close()


def test_half_characters_become_question_marks(serve):
    lm = open_lm(serve(lambda c, r: c.sendall(whole(b'{"choices": [{"text": "a\\ud800b"}]}'))))
    assert lm.complete(["Is it?"])[0][0].text == "a?b"
    lm.close()


@pytest.mark.parametrize("entry", [5, None, {}, {"id": None}, {"id": "x" * 10**6}, {"id": ["words"]}])
def test_odd_lists_of_models_are_counted_as_no_answer(serve, entry):
    lm = open_lm(serve(lambda c, r: c.sendall(whole({"data": [entry]})), lists=False))
    with pytest.raises(RetriesExhausted, match="not of the usual form"):
        lm.complete(["Is it?"])
    lm.close()


@pytest.mark.parametrize(
    "rows", [[], [[]], [[1.0], [2.0]], [[0.0, 0.0]], [["1e999"]], [[1e400]], [[1.0, [2.0]]], [{"a": 1}], [1.0]]
)
def test_odd_embeddings_are_counted_as_no_answer(serve, rows):
    body = json.dumps({"data": [{"embedding": row} for row in rows]}).replace("Infinity", "1e999").encode()
    lm = open_lm(serve(lambda c, r: c.sendall(whole(body))))
    with pytest.raises(RetriesExhausted, match=r"not of the usual form|no 'data'"):
        lm.embed(["Is it?"])
    lm.close()


# Addresses, keys and connections --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *("http://me:word@host/v1", "https://word@host/v1", "https://host/v1?key=word", "https://host/v1#word"),
        *("http://", "http://host:word/v1", "http://host:99999/v1", "http://ho st/v1", "http://[::1/v1", "HTTP://@/"),
    ],
)
def test_addresses_that_are_none_or_hold_a_secret_are_refused_before_anything_is_written(address):
    from coterie.lm import LMSettings

    with pytest.raises(ValueError, match="the address of a server must") as caught:
        LMSettings(address)
    assert "word" not in str(caught.value).replace("password", "")


def test_a_key_that_no_header_can_hold_is_refused_without_its_words(monkeypatch):
    monkeypatch.setenv("MY_KEY", f"{SECRET}\nX-Other: yes")
    with pytest.raises(ValueError, match=r"http.api_key_env: the value of MY_KEY") as caught:
        load("http://127.0.0.1:9/v1", http=HttpSettings(api_key_env="MY_KEY"))
    assert SECRET not in str(caught.value)


def test_connections_are_kept_and_replaced_when_the_server_has_closed_them():
    connected = []

    def serve():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            connected.append(connection)
            for _ in range(2):  # then it closes
                while not connection.recv(65536).endswith(b"{}"):
                    pass
                connection.sendall(whole(b"{}"))
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        client = Client(url, 2.0, {})
        for _ in range(4):
            assert client.request("POST", url, b"{}", 100).body == b"{}"
            time.sleep(0.02)  # for the end of the connection to arrive
        assert len(connected) == 2
        client.close()


def test_a_proxy_of_the_environment_is_used(serve, monkeypatch):
    proxy = serve(lambda c, r: c.sendall(whole(GOOD)), lists=False)
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1").replace("//", "//me:word@"))
    client = Client("http://far.example:81/v1", 2.0, {})
    assert json.loads(client.request("POST", "http://far.example:81/v1/completions", b"{}", 1000).body) == GOOD
    request = proxy.requests[0].decode()
    assert request.startswith("POST http://far.example:81/v1/completions HTTP/1.1\r\nHost: far.example:81\r\n")
    assert "Proxy-Authorization: Basic bWU6d29yZA==" in request
    monkeypatch.setenv("no_proxy", "far.example")
    assert Client("http://far.example/v1", 2.0, {})._proxy is None
    client.close()


def test_a_forked_process_opens_connections_of_its_own(serve):
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    client = Client("http://127.0.0.1:9/v1", 1.0, {})
    client._idle.append("a connection of the parent")
    client._owner = -1
    client._take()
    assert client._idle == []
