"""The script that proves, on a cluster, that prefill happens remotely."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from planner.deploy.command_text import comment, quoted
from planner.deploy.description import Deployment, Front, checked_for
from planner.deploy.kubernetes.pods import FRONT, ROLE
from planner.deploy.probes import ASKS, ASKS_FOR_A_CACHE, SAYS, request_of
from planner.deploy.words import short_name
from planner.specs import Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """Where a platform's engines say how many requests they have finished.

    Attributes
    ----------
    ports : mapping of str
        Of pods, by their role.
    counter : str
        Start of the lines that are added up.
    front : str
        What takes requests, as ``kubectl port-forward`` names it; empty: where the site says.
    answers : bool
        Whether engines answer requests themselves, so that they can be asked for a KV cache.
    """

    ports: Mapping[Phase, str]
    counter: str
    front: str
    answers: bool


_FUNCTIONS = r"""
# Names of the pods of the role $1 that run.
pods() {
  kubectl get pods --namespace "$namespace" --selector "$selector,ROLE=$1" \
    --field-selector status.phase=Running --output name | sed 's|^pod/||'
}
# Metrics of the pod and port $1, which may speak HTTPS.
counters() {
  for place in "$1" "https:$1"; do
    kubectl get --raw "/api/v1/namespaces/$namespace/pods/$place/proxy/metrics" 2> /dev/null && return
  done
}
# Requests that the engines of the role $1 have finished; pods that count nothing are parts of others.
finished() {
  sum=0
  for pod in $(pods "$1"); do
    count=$(counters "$pod:$(metrics "$1")" |
      awk '/^COUNTER/ { total += $NF } END { printf "%d", total }')
    sum=$((sum + count))
  done
  printf '%d' "$sum"
}
# Sends requests to the front; fails unless the engines of the role $1 finish as many. $2: what else happens.
routed() {
  before=$(finished "$1")
  for _ in 1 2 3 4; do
    ask "$front" "$request" > /dev/null || fail "the front answers no request"
  done
  done_by=$(($(finished "$1") - before))
  [ "$done_by" -ge 4 ] || fail "$1 engines finished $done_by of 4 requests: $2"
}

"""

_FORWARDED = r"""
forwarders=''
log=$(mktemp)
trap 'kill $forwarders 2> /dev/null; rm -f "$log"' EXIT
# The port of this computer that kubectl has chosen.
forwarded() { sed -n 's/^Forwarding from 127\.0\.0\.1:\([0-9]*\) .*/\1/p' "$log"; }
# Makes the port $2 of $1 one of this computer, at $url.
forward() {
  kubectl port-forward --namespace "$namespace" "$1" ":$2" > "$log" 2>&1 &
  forwarders="$forwarders $!"
  tries=0
  until [ -n "$(forwarded)" ]; do
    tries=$((tries + 1))
    [ "$tries" -le 30 ] || {
      fail "kubectl port-forward $1: $(cat "$log")"
      return 1
    }
    sleep 1
  done
  url="http://127.0.0.1:$(forwarded)"
}
if [ -n "${1:-}" ]; then
  front=$1
else
  forward "$service" "$port" || exit 1
  front=$url$path
fi
"""

_GIVEN = r"""
front=${1:-$given}
"""

_EVERY_ROLE = r"""
for role in $roles; do
  [ -n "$(pods "$role")" ] || fail "no pod of role $role runs"
done
"""

_OFFERS = r"""
# A prefill engine hands over its KV cache: kv_transfer_params of its answer is not null. Nobody fetches it;
# the engine drops it after some minutes.
for pod in $(pods prefill); do
  forward "pod/$pod" "$(metrics prefill)" || continue
  answer=$(ask "$url" "$offer") || {
    fail "$pod answers no request"
    continue
  }
  printf '%s' "$answer" | tr -d ' \n' | grep -q '"kv_transfer_params":{"' ||
    fail "$pod hands over no KV cache: kv_transfer_params is null"
done
"""

_REMOTE = r"""
routed prefill "decode engines compute the prompts"
routed decode "nobody else should decode"
"""

_COLOCATED = r"""
routed colocated "who answers?"
"""

_END = r"""
[ "$failed" -eq 0 ] && say "passed"
exit "$failed"
"""


def _door(front: Front, counted: Counted) -> dict[str, str]:
    """Where requests go, for the script."""
    if not counted.front:
        return {"given": front.router.url}
    return {"service": counted.front, "port": str(front.router.port), "path": front.router.path}


def smoke_text(deployment: Deployment, front: Front, counted: Counted) -> str:
    """Fails where requests are answered though prefill engines do nothing: how deployments go wrong."""
    roles = [str(role) for role in Phase if front.engines_of(role)]
    variables = {
        "namespace": deployment.cluster.namespace,
        "selector": f"{FRONT}={short_name(front.name)}",
        **_door(front, counted),
        "roles": " ".join(roles),
        "request": json.dumps(request_of(front)),
    }
    offers = front.disaggregated and counted.answers
    if offers:
        offer = request_of(front) | {"max_tokens": 1, "kv_transfer_params": ASKS_FOR_A_CACHE}
        variables["offer"] = json.dumps(offer)
    ports = [f"    {role}) printf '%s' {quoted(counted.ports[Phase(role)])} ;;" for role in roles]
    where = [
        "# Where pods of the role $1 count requests.",
        "metrics() {",
        '  case "$1" in',
        *ports,
        "  esac",
        "}",
    ]
    parts = [
        "\n".join(where),
        SAYS,
        ASKS,
        _FUNCTIONS.replace("COUNTER", counted.counter).replace("ROLE", ROLE),
        _FORWARDED if counted.front else _GIVEN,
        _EVERY_ROLE,
        *([_OFFERS] if offers else []),
        _REMOTE if front.disaggregated else _COLOCATED,
        _END,
    ]
    default = "a forwarded port" if counted.front else "given below"
    lines = [
        "#!/bin/sh",
        comment(f"Smoke check of {front.service}; needs kubectl and curl. Usage: sh smoke-check.sh [URL]"),
        comment(f"URL is where requests go; default: {default}."),
        comment(f"plan {deployment.plan_id}; for {checked_for(deployment)}"),
        "set -u",
        *(f"{name}={quoted(value)}" for name, value in variables.items()),
        *(part.strip("\n") for part in parts),
    ]
    return "\n".join(lines) + "\n"
