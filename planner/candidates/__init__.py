"""Every replica that fits and meets the SLOs, with its capacity curve: scenario -> program.

A candidate is (phase, GPU type, parallelism, token budget). What happens between prefill and first
token couples the two pools, and percentiles of a sum must not be added. So a prefill candidate comes
in several versions: by the slowest path that its KV caches may take (*transfer class*), and by the
longest decode step that its first tokens may wait for; its TTFT is computed at these. A decode
candidate comes in versions by the longest step that it runs. Prefill and decode may stand behind
one router only where path and step are within what the prefill version allows.
"""

from planner.candidates.build import build_candidates, forget
from planner.candidates.context import CandidateSet, Rejection, ReplicaChoice
from planner.candidates.curves import MOST_REPLICAS, replica_counts, replicas_in_stock

__all__ = [
    "MOST_REPLICAS",
    "CandidateSet",
    "Rejection",
    "ReplicaChoice",
    "build_candidates",
    "forget",
    "replica_counts",
    "replicas_in_stock",
]
