"""Another tool's predictions for the same rows: errors of both, where both have an answer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.documents.peer_file import read_peer
from planner.errors import SpecError
from planner.validation.comparison import TPOT, TTFT, Comparison
from planner.validation.scores import Errors, errors_of


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerErrors:
    """Errors by kind over the rows that both predict."""

    name: str
    ours: Mapping[str, Errors]
    theirs: Mapping[str, Errors]


def peer_errors(found: Comparison, path: str | Path) -> PeerErrors:
    """Errors of a tool whose predictions a file holds by id, beside ours on the same rows.

    Raises
    ------
    SpecError
        A bad file, or no id in common.
    """
    peer = read_peer(path)
    ids = [cells.get("id", "") for cells in found.cells]
    scored = found.chosen & np.array([not reason for reason in found.reasons])
    ours, theirs = {}, {}
    for kind, values in ((TPOT, peer.tpot), (TTFT, peer.ttft)):
        if kind not in found.series:
            continue
        s = found.series[kind]
        other = np.array([values.get(ids[row], math.nan) for row in s.rows])
        both = scored[s.rows] & np.isfinite(other) & np.isfinite(s.predicted)
        own = errors_of(s.predicted[both], s.measured[both], s.log_sd[both])
        their = errors_of(other[both], s.measured[both])
        if own is not None and their is not None:
            ours[kind], theirs[kind] = own, their
    if not ours:
        raise SpecError(f"{path}: predicts none of the rows: ids have to be those of the measured file")
    return PeerErrors(name=peer.name, ours=ours, theirs=theirs)
