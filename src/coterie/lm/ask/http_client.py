"""HTTP requests with a deadline for the whole exchange and a limit on the size of the answer.

A server may be slow, broken or hostile. Clients such as httpx begin their time limit anew with every byte that arrives,
and read an answer however long it is; hence this small one on top of the standard library. It follows no redirects, so
that a key reaches the host of the address and no other, and it asks for answers that are not compressed.
"""

from __future__ import annotations

import base64
import http.client
import io
import os
import selectors
import socket
import ssl
import threading
import time
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

CHUNK = 65536
HEADERS = 2**20  # bytes of an answer that are not its body: status, headers, sizes of chunks
PORTS = {"http": 80, "https": 443}


class RequestFailed(Exception):
    """The server gave no answer; `sent`: it may have received the request."""

    def __init__(self, message: str, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


@dataclass(frozen=True)
class Answer:
    """A server's answer, whatever its status."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class Client:
    """Sends requests to one server; connections are kept for later requests. Safe for threads."""

    def __init__(self, address: str, timeout: float, headers: dict[str, str]) -> None:
        """`timeout`: seconds from the look-up of the host's name to the last byte of an answer."""
        self.timeout = timeout
        self._headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "coterie"} | headers
        self._parts = urlsplit(address)
        self._proxy = _proxy_of(self._parts)
        self._context = ssl.create_default_context() if self._parts.scheme == "https" else None
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._owner = os.getpid()

    def request(self, method: str, url: str, body: bytes | None, limit: int) -> Answer:
        """Send one request and return the answer; raise `RequestFailed` if it has more than `limit` bytes."""
        deadline = time.monotonic() + self.timeout
        connection = self._take()
        connection.allow(deadline, limit + HEADERS)
        connected = connection.sock is not None
        try:
            if not connected:
                connection.connect()
                connected = True
            answer = self._exchange(connection, method, url, body, limit)
        except TimeoutError:
            connection.close()
            raise RequestFailed(f"no answer within {self.timeout:g} s", sent=connected) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            what = "the connection broke" if connected else "cannot reach the server"
            raise RequestFailed(f"{what} ({type(error).__name__})", sent=connected) from None
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            with self._lock:
                self._idle.append(connection)
        return answer

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> _Connection:
        """A kept connection that the server has neither closed nor written to, or a new one."""
        with self._lock:
            if self._owner != os.getpid():  # the connections of the process that this one was forked from
                self._idle, self._owner = [], os.getpid()
            while self._idle:
                connection = self._idle.pop()
                if connection.is_quiet():
                    return connection
                connection.close()
        return _Connection(self._parts, self._context, self._proxy)

    def _exchange(self, connection: _Connection, method: str, url: str, body: bytes | None, limit: int) -> Answer:
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = dict(self._headers)
        if connection.through_proxy:
            path = f"{parts.scheme}://{parts.netloc}{path}"
            headers |= connection.proxy_headers
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise RequestFailed(f"the answer is compressed ({encoding[:20]!r}), which nobody asked for", sent=True)
        data = bytearray()
        while chunk := response.read(CHUNK):
            data += chunk
            if len(data) > limit:
                raise RequestFailed(f"the answer has more than {limit:,} bytes", sent=True)
        if response.length:  # bytes that the server announced and did not send
            raise RequestFailed("the connection broke in the middle of the answer", sent=True)
        if not response.isclosed():
            response.close()
        return Answer(response.status, response.headers, bytes(data))


class _Connection(http.client.HTTPConnection):
    """A connection whose every wait ends at a deadline, and that reads so many bytes."""

    def __init__(self, parts: SplitResult, context: ssl.SSLContext | None, proxy: SplitResult | None) -> None:
        port = parts.port or PORTS[parts.scheme]
        self.default_port = PORTS[parts.scheme]  # the header Host goes without it
        super().__init__(str(parts.hostname), port)
        self.context, self.proxy, self.target = context, proxy, (str(parts.hostname), port)
        self.through_proxy = proxy is not None and context is None
        self.proxy_headers = _proxy_authorization(proxy)
        self.allow(time.monotonic(), 0)

    def allow(self, deadline: float, received: int) -> None:
        """Set the deadline and the number of bytes of the next answer."""
        self.deadline, self.left_to_read = deadline, received

    def left(self) -> float:
        """Seconds until the deadline; raises `TimeoutError` after it."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    def connect(self) -> None:
        proxy = self.proxy
        opened = self._open(*((str(proxy.hostname), proxy.port or PORTS["http"]) if proxy else self.target))
        try:
            if proxy is not None and self.context is not None:
                self._open_tunnel(opened)
            if self.context is not None:
                opened.settimeout(self.left())
                opened = self.context.wrap_socket(opened, server_hostname=self.target[0])
        except BaseException:
            opened.close()
            raise
        self.sock: Any = _Bounded(opened, self)

    def is_quiet(self) -> bool:
        """Whether a kept connection can take a request: nothing has arrived, not even its end."""
        if self.sock is None:
            return False
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock.inner, selectors.EVENT_READ)
            return not selector.select(0)

    def _open(self, host: str, port: int) -> socket.socket:
        """Connect to the first of the host's addresses that takes the connection."""
        failure: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in self._look_up(host, port):
            made = socket.socket(family, kind, protocol)
            try:
                made.settimeout(self.left())
                made.connect(address)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return made
            except TimeoutError:
                made.close()
                raise
            except OSError as error:
                made.close()
                failure = error
        raise failure

    def _look_up(self, host: str, port: int) -> list[Any]:
        """The addresses of a host. The system's look-up has no time limit, so a thread waits for it."""
        found: list[Any] = []

        def ask() -> None:
            try:
                found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except (OSError, UnicodeError) as error:
                failed.append(error)

        failed: list[Exception] = []
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(self.left())
        if failed:
            raise OSError(f"{host} has no address") from failed[0]
        if thread.is_alive():
            raise TimeoutError
        return found

    def _open_tunnel(self, opened: socket.socket) -> None:
        """Ask a proxy for a connection to the server."""
        host, port = self.target
        lines = [f"CONNECT {host}:{port} HTTP/1.1", f"Host: {host}:{port}"]
        lines += [f"{name}: {value}" for name, value in self.proxy_headers.items()]
        opened.settimeout(self.left())
        opened.sendall("\r\n".join([*lines, "", ""]).encode())
        answered = b""
        while not answered.endswith(b"\r\n\r\n"):  # byte by byte: what follows is the server's
            opened.settimeout(self.left())
            byte = opened.recv(1)
            answered += byte
            if not byte or len(answered) > CHUNK:
                raise OSError("the proxy's answer has no end")
        if answered.split(b" ", 2)[1:2] != [b"200"]:
            raise OSError("the proxy refuses the connection")


class _Bounded:
    """The part of a socket that `http.client` uses, with the connection's deadline on each wait."""

    def __init__(self, inner: socket.socket, connection: _Connection) -> None:
        self.inner, self.connection = inner, connection

    def sendall(self, data: Any) -> None:
        self.inner.settimeout(self.connection.left())
        self.inner.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:  # `http.client` reads bytes
        return io.BufferedReader(_BoundedFile(self.inner.makefile("rb", buffering=0), self), CHUNK)

    def close(self) -> None:
        self.inner.close()


class _BoundedFile(io.RawIOBase):
    """The bytes of one answer."""

    def __init__(self, raw: Any, source: _Bounded) -> None:
        self.raw, self.source = raw, source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        connection = self.source.connection
        self.source.inner.settimeout(connection.left())
        count: int = self.raw.readinto(buffer)
        connection.left_to_read -= count
        if connection.left_to_read < 0:
            raise RequestFailed("the answer does not end", sent=True)
        return count

    def close(self) -> None:
        self.raw.close()
        super().close()


def _proxy_of(parts: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for this address (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY)."""
    host = str(parts.hostname)
    if urllib.request.proxy_bypass(host):
        return None
    named = urllib.request.getproxies()
    address = named.get(parts.scheme) or named.get("all")
    if not address:
        return None
    proxy = urlsplit(address if "://" in address else f"http://{address}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise ValueError(
            f"a proxy must be an address such as http://host:port; the environment names {proxy.scheme}://…"
        )
    return proxy


def _proxy_authorization(proxy: SplitResult | None) -> dict[str, str]:
    if proxy is None or not proxy.username:
        return {}
    word = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(word.encode()).decode()}"}
