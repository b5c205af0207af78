"""An OpenAI-compatible server on loopback that fails on demand.

`faults` has one entry per coming request: a status, "slow", "cut", "garbage", a dict to be sent as it is, or None for a
good answer. Good answers to /completions echo the prompt on request, with one token per word.
"""

import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FaultServer:
    def __init__(self, echo=True, retry_after="0.01"):
        self.faults, self.echo, self.retry_after = [], echo, retry_after
        self.requests = []  # (path, body, headers)
        self.active = self.max_active = 0  # requests in parallel
        self.owner = "tests"  # whose server it says it is
        self.busy_lists = 0  # coming requests for the list of models that fail
        self.delay = 0.0  # seconds before every good answer
        self.lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words):
                pass

            def do_GET(self):
                if owner.busy_lists:
                    owner.busy_lists -= 1
                    self.send(503, {})
                    return
                self.send(200, {"data": [{"id": "words", "owned_by": owner.owner}]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                with owner.lock:
                    owner.requests.append((self.path, body, headers))
                    fault = owner.faults.pop(0) if owner.faults else None
                    owner.active += 1
                    owner.max_active = max(owner.max_active, owner.active)
                try:
                    self.respond(fault, body)
                finally:
                    with owner.lock:
                        owner.active -= 1

            def respond(self, fault, body):
                if isinstance(fault, int):
                    content = {"error": {"message": f"no, {self.headers['Authorization']}"}}
                    self.send(fault, content, {"Retry-After": owner.retry_after} if fault == 429 else {})
                elif fault == "slow":
                    time.sleep(1.0)
                    self.close_connection = True
                elif fault == "cut":
                    self.send(200, b'{"choices": [{"te', {"Content-Length": "1000"})
                    self.close_connection = True
                elif fault == "garbage":
                    self.send(200, b"<html>not JSON</html>")
                elif isinstance(fault, dict):
                    self.send(200, fault)
                else:
                    time.sleep(owner.delay)
                    self.send(200, owner.answer(self.path, body))

            def send(self, status, content, headers=None):
                raw = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                for name, value in ({"Content-Length": str(len(raw))} | (headers or {})).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def answer(self, path, body):
        """Answer `yes`; a token is a word, and its log-probability is minus its number of characters."""
        if path.endswith("/embeddings"):
            return {"data": [{"embedding": [float(len(text)), 1.0]} for text in body["input"]]}
        usage = {"prompt_tokens": 3, "completion_tokens": 1}
        if path.endswith("/chat/completions"):
            one = {"message": {"content": "yes"}, "finish_reason": "stop"}
            return {"choices": [one] * body["n"], "usage": usage}
        text, words = "yes", [("yes", 0)]
        if body.get("echo") and self.echo:
            text = body["prompt"] + "yes"
            words = [(found.group(), found.start()) for found in re.finditer(r" ?[^ ]+", body["prompt"])]
        logprobs = {
            "tokens": [word for word, _ in words],
            "token_logprobs": [-float(len(word)) for word, _ in words],
            "text_offset": [at for _, at in words],
        }
        one = {"text": text, "finish_reason": "stop", "logprobs": logprobs}
        return {"choices": [one] * min(body.get("n", 1), 2), "usage": usage}  # never more than two samples

    def close(self):
        self.server.shutdown()
        self.server.server_close()
