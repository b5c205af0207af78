"""A server on loopback that sends any bytes, at any pace.

`script` takes the connection (a socket) and the request's bytes, and does what it wants. Requests for the list of
models get a good answer unless `lists` is False.
"""

import json
import socket
import threading
import time

MODELS = {"data": [{"id": "words", "owned_by": "tests"}]}


def head(*headers, status="200 OK"):
    """The beginning of an answer."""
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode()


def whole(content, *headers, status="200 OK"):
    """An answer."""
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return head(f"Content-Length: {len(raw)}", *headers, status=status) + raw


def drip(connection, data, pause=0.05):
    """Send single bytes until the other side has gone."""
    for byte in data:
        connection.sendall(bytes([byte]))
        time.sleep(pause)


def endless(connection, data):
    """Send again and again until the other side has gone; returns the number of bytes that it took."""
    sent = 0
    try:
        while True:
            sent += connection.send(data)
    except OSError:
        return sent


class HostileServer:
    def __init__(self, script, lists=True):
        self.script, self.lists, self.requests, self.results = script, lists, [], []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection:
            try:
                while request := self._read(connection):
                    if self.lists and request.startswith(b"GET "):
                        connection.sendall(whole(MODELS))
                        continue
                    self.requests.append(request)
                    self.results.append(self.script(connection, request))
                    return
            except OSError:
                return

    def _read(self, connection):
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := connection.recv(65536)):
                return b""
            data += more
        start, _, body = data.partition(b"\r\n\r\n")
        lengths = [line.split(b":")[1] for line in start.split(b"\r\n") if line.lower().startswith(b"content-length")]
        while lengths and len(body) < int(lengths[0]):
            body += connection.recv(65536)
        return start + b"\r\n\r\n" + body

    def close(self):
        self.socket.close()
