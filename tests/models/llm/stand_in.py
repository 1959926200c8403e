"""A model server in place of vLLM's, started by the same command line: it echoes, waits, and dies where told to.

Prompts: "die" ends the process, "500" is answered so while the process lives, "sick" makes /health fail for good,
"child" is the number of a process that it started, "wait" waits for ever, "pid" is its own number. The option
--fail ends it at its start, --die-after N with its Nth request.
"""

import http.server
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else ""


class State:
    lock = threading.Lock()
    n = n_now = 0
    sick = asleep = False
    child = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/health":
            return self.send({}, 503 if State.sick else 200)
        if self.path == "/metrics":
            lines = f'vllm:num_preemptions_total{{engine="0"}} {State.n}\nvllm:request_queue_time_seconds_sum 0.5\n'
            return self.send(lines.encode())
        if self.headers["Authorization"] != f"Bearer {os.environ['VLLM_API_KEY']}":
            return self.send({}, 401)
        self.send({"data": [{"id": option("--served-model-name"), "max_model_len": 2048, "root": "/x"}]})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/sleep") or self.path == "/wake_up":
            State.asleep = self.path != "/wake_up"
            return self.send({})
        prompt = json.loads(raw)["messages"][-1]["content"]
        with State.lock:
            State.n, State.n_now = State.n + 1, State.n_now + 1
            n = State.n
        try:
            self.answer(prompt, n)
        finally:
            with State.lock:
                State.n_now -= 1

    def answer(self, prompt: str, n: int) -> None:
        if "die" in prompt.split() or str(n) == option("--die-after"):
            time.sleep(0.1 if option("--die-after") == "" else 0)  # others come meanwhile
            print("RuntimeError: it was asked to die", flush=True)
            os._exit(7)
        if prompt == "500":
            return self.send({"error": "for once"}, 500)
        if prompt == "sick":
            State.sick = True
            return self.send({"error": "EngineDeadError"}, 500)
        if prompt == "wait":
            self.connection.settimeout(30)
            gone = self.rfile.read(1) == b""  # until the connection is closed
            Path(os.environ["STAND_IN_TRACE"]).write_text(f"gone {gone}")
            return None
        said = {"pid": str(os.getpid()), "child": str(State.child), "asleep": str(State.asleep)}
        said |= {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES", "none"), "beside": str(State.n_now)}
        time.sleep(0.3 if prompt == "beside" else 0.05)
        text = said.get(prompt, f"re: {prompt}")
        usage = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}
        self.send({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage})

    def send(self, content: Any, status: int = 200) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: Any) -> None:
        pass


class Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 512


class Tcp(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True


def main() -> None:
    if option("--fail"):
        sys.exit(f"ValueError: {option('--fail')}")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    State.child = subprocess.Popen(["sleep", "300"]).pid
    if option("--uds"):
        server: Any = Unix(option("--uds"), Handler)
    else:
        server = Tcp((option("--host"), int(option("--port"))), Handler)
    server.serve_forever()


if __name__ == "__main__":
    main()
