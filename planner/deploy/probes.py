"""Scripts beside a deployment: the proof that prefill happens remotely, and the load test."""

from __future__ import annotations

import json
from collections.abc import Sequence

from planner.deploy.command_text import command, comment, quoted
from planner.deploy.description import Deployment, Engine, Front
from planner.deploy.fronts import strictest
from planner.specs import Metric, Phase
from planner.units import MILLI

SAYS = r"""
failed=0
say() { printf '%s\n' "$*"; }
fail() {
  say "FAILED: $*" >&2
  failed=1
}
"""

_COUNTS = r"""
# Requests that the engines of the list $1 have finished.
finished() {
  sum=0
  for url in $1; do
    count=$(curl --globoff --fail --silent --show-error --max-time 30 "$url/metrics" |
      awk '/^COUNTER/ { total += $NF } END { printf "%d", total }')
    sum=$((sum + count))
  done
  printf '%d' "$sum"
}
"""

ASKS = r"""
# Sends the request $2 to $1.
ask() {
  curl --globoff --fail --silent --show-error --max-time 300 --header 'Content-Type: application/json' \
    --data "$2" "$1/v1/completions"
}
"""

_ROUTES = r"""
# Sends requests to the router; fails unless the engines $2, called $1, finish as many. $3: what else happens.
routed() {
  before=$(finished "$2")
  for _ in 1 2 3 4; do
    ask "$router" "$request" > /dev/null || fail "the router answers no request"
  done
  done_by=$(($(finished "$2") - before))
  [ "$done_by" -ge 4 ] || fail "$1 engines finished $done_by of 4 requests: $3"
}
"""

_HEALTHY = r"""
for url in $engines; do
  curl --globoff --fail --silent --show-error --max-time 30 --output /dev/null "$url/health" ||
    fail "$url is not healthy"
done
"""

_RECORDS = r"""
# Requests that the engines of the list $1 have finished since they were last asked; records hold the key $2.
finished() {
  sum=0
  for url in $1; do
    count=$(curl --globoff --fail --silent --show-error --max-time 30 "$url/perf_metrics" |
      tr -d ' [{' | tr ',' '\n' | grep -c "^\"$2\":[^n]")
    sum=$((sum + count))
  done
  printf '%d' "$sum"
}
"""

_PARTS = r"""
# Fails unless the engines $2, called $1, finished all requests, with the key $3. $4: what else happens.
took_part() {
  done_by=$(finished "$2" "$3")
  [ "$done_by" -ge 4 ] || fail "$1 engines finished $done_by of 4 requests: $4"
}
"""

_HANDED_OVER = r"""
# Records of both sides hold the number of the request that computed the prompt, where it was a hand-over.
finished "$engines" request_id > /dev/null
for _ in 1 2 3 4; do
  ask "$router" "$request" > /dev/null || fail "the router answers no request"
done
took_part prefill "$prefill" ctx_request_id "decode engines compute the prompts"
took_part decode "$decode" ctx_request_id "nobody else should decode"
"""

_ALONE = r"""
finished "$engines" request_id > /dev/null
for _ in 1 2 3 4; do
  ask "$router" "$request" > /dev/null || fail "the engine answers no request"
done
took_part colocated "$engines" request_id "who answers?"
"""

_REMOTE = r"""
# Every prefill engine hands over its KV cache: kv_transfer_params of its answer is not null. Nobody fetches
# it; the engine drops it after some minutes.
for url in $prefill; do
  answer=$(ask "$url" "$offer") || {
    fail "$url answers no request"
    continue
  }
  printf '%s' "$answer" | tr -d ' \n' | grep -q '"kv_transfer_params":{"' ||
    fail "$url hands over no KV cache: kv_transfer_params is null"
done
routed prefill "$prefill" "decode engines compute the prompts"
routed decode "$decode" "nobody else should decode"
"""

_BOOTSTRAP = r"""
# Decode engines ask the bootstrap server of a prefill engine where its KV caches are.
for url in $bootstrap; do
  curl --globoff --fail --silent --show-error --max-time 30 --output /dev/null "$url/health" ||
    fail "$url: the bootstrap server of a prefill engine does not answer"
done
routed prefill "$prefill" "decode engines compute the prompts"
routed decode "$decode" "nobody else should decode"
"""

_COLOCATED = r"""
routed colocated "$engines" "who answers?"
"""

_END = r"""
[ "$failed" -eq 0 ] && say "passed"
exit "$failed"
"""

_SENTENCE, _TOKENS = "The quick brown fox jumps over the lazy dog. ", 10  # about so many
_SENTENCES = 8

ASKS_FOR_A_CACHE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def vllm_smoke_text(deployment: Deployment, front: Front) -> str:
    """Fails where requests are answered though prefill engines do nothing: how deployments go wrong."""
    offer = request_of(front) | {"max_tokens": 1, "kv_transfer_params": ASKS_FOR_A_CACHE}
    asked = {"offer": json.dumps(offer)}
    checks = _REMOTE if front.disaggregated else _COLOCATED
    return _smoke(deployment, front, _functions("vllm:request_success_total"), checks, asked)


def sglang_smoke_text(deployment: Deployment, front: Front) -> str:
    """Fails where bootstrap servers are silent, or requests are answered without prefill engines."""
    prefill = front.engines_of(Phase.PREFILL)
    servers = [f"http://{deployment.host(e.host).address}:{e.side_port}" for e in prefill]
    asked = {"bootstrap": " ".join(servers)}
    checks = _BOOTSTRAP if front.disaggregated else _COLOCATED
    return _smoke(deployment, front, _functions("sglang:num_requests_total"), checks, asked)


def trtllm_smoke_text(deployment: Deployment, front: Front) -> str:
    """Fails where requests are answered without a record on either side of the hand-over.

    Engines keep records of finished requests until somebody reads them.
    """
    functions = (SAYS, _RECORDS, ASKS, _PARTS, _HEALTHY)
    return _smoke(deployment, front, functions, _HANDED_OVER if front.disaggregated else _ALONE, {})


def _functions(counter: str) -> tuple[str, ...]:
    return SAYS, _COUNTS.replace("COUNTER", counter), ASKS, _ROUTES, _HEALTHY


def request_of(front: Front) -> dict[str, object]:
    """A short request to a front's model, of a length that comes here."""
    count = _SENTENCES
    if front.prompts is not None:
        shortest, longest = front.prompts
        wanted = 1.5 * shortest if longest is None else (shortest + longest) / 2
        count = max(round(wanted / _TOKENS), 1)
    return {
        "model": front.served_name,
        "prompt": _SENTENCE * count,
        "max_tokens": 8,
        "temperature": 0,
    }


def _smoke(
    deployment: Deployment, front: Front, functions: Sequence[str], checks: str, asked: dict[str, str]
) -> str:
    """`asked`: what checks of pools of two phases read beside addresses."""
    variables = {
        "router": front.router.url,
        "engines": _urls(deployment, front.engines),
        "request": json.dumps(request_of(front)),
    }
    if front.disaggregated:
        variables |= {
            "prefill": _urls(deployment, front.engines_of(Phase.PREFILL)),
            "decode": _urls(deployment, front.engines_of(Phase.DECODE)),
            **asked,
        }
    lines = [
        "#!/bin/sh",
        comment(f"Smoke check of {front.service}; needs curl. Run it where the engines can be reached."),
        comment(f"plan {deployment.plan_id}; for {deployment.engine} {deployment.engine_version}"),
        "set -u",
        *(f"{name}={quoted(value)}" for name, value in variables.items()),
        _body(functions),
        checks.strip("\n"),
        _END.strip("\n"),
    ]
    return "\n".join(lines) + "\n"


def _body(functions: Sequence[str]) -> str:
    *parts, last = (text.strip("\n") for text in functions)
    return "\n".join(parts) + f"\n\n{last}"


def _urls(deployment: Deployment, engines: tuple[Engine, ...]) -> str:
    return " ".join(map(deployment.url, engines))


def load_test_text(deployment: Deployment, front: Front, result: str) -> str:
    """The plan's traffic by ``vllm bench serve``, for ``planner judge``."""
    test = front.load_test
    limits = [
        f"{'e2el' if metric is Metric.E2E else metric}:{target.limit / MILLI:g}"
        for metric, target in strictest(front.slo).items()
    ]
    words = [
        "exec vllm bench serve",
        "--backend openai",
        f"--base-url {quoted(front.router.url)}",
        f"--model {quoted(front.model)}",
        f"--served-model-name {quoted(front.served_name)}",
        "--dataset-name random",
        f"--random-input-len {test.prompt}",
        f"--random-output-len {test.output}",
        f"--random-prefix-len {test.shared_prefix}",
        f"--random-range-ratio {test.spread:g}",
        f"--request-rate {test.request_rate:g}",
        f"--burstiness {test.burstiness:g}",
        f"--num-prompts {test.requests}",
        "--ignore-eos",
        "--percentile-metrics ttft,tpot,e2el",
        "--metric-percentiles 50,90,95,99",
        *([f"--goodput {' '.join(limits)}"] if limits else []),
        "--save-result",
        f"--result-filename {quoted(result)}",
    ]
    lines = [
        "#!/bin/sh",
        comment(f"Load test of {front.service}: the plan's mean lengths, rate and shared prefix"),
        comment(
            f"plan {deployment.plan_id}; flags checked for vllm bench serve {deployment.load_test_version}"
        ),
        comment(f"Afterwards: planner judge {result} plan.yaml"),
        "set -eu",
        command(words),
    ]
    return "\n".join(lines) + "\n"
