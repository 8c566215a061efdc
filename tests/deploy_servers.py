"""Engines and a router of a few lines, for scripts that ask them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FakeServer(ThreadingHTTPServer):
    """An engine or a router that counts the requests it has finished, and those behind it too."""

    def __init__(self, metric: str, offers: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.metric = metric
        self.offers = offers
        self.finished = 0
        self.unread = 0
        self.behind: list[FakeServer] = []


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode("utf-8"))

    def do_GET(self) -> None:
        if self.path == "/perf_metrics":
            context = 7 if self.server.offers else None
            record = {"request_id": 3, "perf_metrics": {"first_iter": 1}, "ctx_request_id": context}
            self._answer(json.dumps([record] * self.server.unread))
            self.server.unread = 0
            return
        counted = f"# TYPE x counter\n{self.server.metric} {self.server.finished}.0\n"
        self._answer(counted if self.path == "/metrics" else "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for server in (self.server, *self.server.behind):
            server.finished += 1
            server.unread += 1
        given = {"remote_engine_id": "x"} if "kv_transfer_params" in body and self.server.offers else None
        self._answer(json.dumps({"choices": [], "kv_transfer_params": given}))


@contextmanager
def _served(count: int, metric: str, offers: bool) -> Iterator[list[FakeServer]]:
    servers = [FakeServer(metric, offers) for _ in range(count)]
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield servers
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()


def run_smoke_check(
    script: Path, *, metric: str, remote: bool, offers: bool = True, dead: str = ""
) -> subprocess.CompletedProcess[str]:
    """A copy of `script` against fake servers.

    Parameters
    ----------
    metric : str
        The counter of finished requests, with its labels.
    remote : bool
        Whether prompts reach the prefill engines.
    offers : bool
        Whether engines answer with `kv_transfer_params`, and keep records of hand-overs.
    dead : str
        Addresses with this in them are answered by nobody; empty for none.
    """
    text = script.read_text(encoding="utf-8")
    urls = sorted(set(re.findall(r"http://[\w.]+:\d+", text)))
    with _served(len(urls), metric, offers) as servers:
        by_url = dict(zip(urls, servers, strict=True))
        router = next((server for url, server in by_url.items() if ":8000" in url), None)
        prefill = [server for url, server in by_url.items() if ":810" in url]
        decode = [server for url, server in by_url.items() if ":820" in url]
        if router is not None:
            router.behind = [prefill[0], decode[0]] if remote else [decode[0]]
        for url, server in by_url.items():
            port = 1 if dead and dead in url else server.server_port
            text = text.replace(url, f"http://127.0.0.1:{port}")
        return subprocess.run(["sh", "-c", text, script.name], capture_output=True, text=True, check=False)


_KUBECTL = """#!{python}
import json, os, sys, time, urllib.request
cluster = json.loads(os.environ["FAKE_CLUSTER"])
words = sys.argv[1:]
if words[:2] == ["get", "pods"]:
    selector = words[words.index("--selector") + 1]
    assert "--namespace" in words and "planner.front=" in selector, words
    role = selector.partition("planner.role=")[2].partition(",")[0]
    for name in cluster["pods"].get(role, {{}}):
        print("pod/" + name)
elif words[:2] == ["get", "--raw"]:
    pod, port = words[2].split("/pods/")[1].split("/")[0].removeprefix("https:").split(":")
    assert port in cluster["metrics"], words
    at = {{name: place for role in cluster["pods"].values() for name, place in role.items()}}[pod]
    print(urllib.request.urlopen(f"http://127.0.0.1:{{at}}/metrics").read().decode())
elif words[0] == "port-forward":
    target, port = words[-2:]
    kind, _, name = target.partition("/")
    places = {{name: place for role in cluster["pods"].values() for name, place in role.items()}}
    at = cluster["front"] if kind in ("service", "svc") else places[name]
    print(f"Forwarding from 127.0.0.1:{{at}} -> {{port[1:]}}", flush=True)
    time.sleep(60)
else:
    sys.exit(f"unexpected: {{words}}")
"""


def run_cluster_check(
    script: Path,
    *,
    metric: str,
    metrics_port: str | tuple[str, ...],
    remote: bool,
    offers: bool = True,
    roles: tuple[str, ...] = ("prefill", "decode"),
    url: bool = False,
) -> subprocess.CompletedProcess[str]:
    """A smoke check of a cluster against fake servers behind a fake kubectl, with two pods of every role.

    Parameters
    ----------
    metric : str
        The counter of finished requests, with its labels.
    metrics_port : str
        Where pods have to be asked for it.
    remote : bool
        Whether prompts reach the prefill engines.
    offers : bool
        Whether engines answer with `kv_transfer_params`.
    url : bool
        Whether the check is told where requests go.
    """
    names = {role: [f"{role}-{i}" for i in range(2)] for role in roles}
    with _served(1 + 2 * len(roles), metric, offers) as (front, *engines):
        pods = dict(zip((pod for listed in names.values() for pod in listed), engines, strict=True))
        first = {role: pods[listed[0]] for role, listed in names.items()}
        front.behind = [server for role, server in first.items() if remote or role != "prefill"]
        cluster = {
            "pods": {role: {pod: pods[pod].server_port for pod in listed} for role, listed in names.items()},
            "metrics": [metrics_port] if isinstance(metrics_port, str) else metrics_port,
            "front": front.server_port,
        }
        folder = script.parent / ".fake"
        folder.mkdir(exist_ok=True)
        (folder / "kubectl").write_text(_KUBECTL.format(python=sys.executable), encoding="utf-8")
        (folder / "kubectl").chmod(0o755)
        environment = os.environ | {
            "FAKE_CLUSTER": json.dumps(cluster),
            "PATH": f"{folder}:{os.environ['PATH']}",
        }
        return subprocess.run(
            ["sh", str(script), *([f"http://127.0.0.1:{front.server_port}"] if url else [])],
            capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
