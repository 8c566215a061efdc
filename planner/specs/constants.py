"""Constants of serving engines that measured rows give."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

ClassKey = tuple[str, ...]
"""An engine, its version and the benchmark that drove it; shorter keys stand for all of a kind."""

FamilyKey = tuple[str, str]
"""An engine, and the shape of a model: one set of kernels."""


FEWEST_ROWS = 20
"""Of a class whose constants another version may have: fewer are of one or two models."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """What rows of one class have in common beside kernels.

    Attributes
    ----------
    step, sequence : float
        Host time of a step, and of each of its sequences. [s]
    decode_scale, prefill_scale : float
        Factors on kernels of decode steps and of prompts. [1]
    fixed : float
        Of a benchmark's TTFT: client, HTTP, tokens to text. [s]
    services : float
        Services of a prompt that a request sees; 1 where it never meets another.
    steps : float
        Steps between a request and the one that takes it, and until its token is sent.
    first_wave : float
        Mean wait, in services, per further client of a replica: all clients start together, and with ten
        requests per client one in ten waits for half of the others.
    """

    step: float = 0.0
    sequence: float = 0.0
    decode_scale: float = 1.0
    prefill_scale: float = 1.0
    fixed: float = 0.0
    services: float = 1.0
    steps: float = 0.5
    first_wave: float = 0.05


NO_CONSTANTS = Constants()
"""Kernels alone, and a TTFT that counts what the benchmark's protocol says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedConstants:
    """Constants by class, and factors on all kernels of models.

    Attributes
    ----------
    classes : mapping
        A class without constants of its own has those of the level above.
    factors : mapping
        By engine and shape of the model. [1]
    names : mapping of str
        Names of the models by shape.
    counts : mapping of int
        Rows that each class was fitted to.
    log_sd, family_log_sd : float
        Spread of the end-to-end error of steps beside that of kernels: of a model that was measured, and
        what comes on top for one that was not. Natural logarithm. [1]
    ttft_log_sd : float
        The same as `log_sd` for a benchmark's TTFT. [1]
    rows : frozenset of str
        Ids of the rows that anything was fitted to.
    source : str
        Where the rows come from.
    """

    classes: Mapping[ClassKey, Constants] = field(default_factory=dict)
    factors: Mapping[FamilyKey, float] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[ClassKey, int] = field(default_factory=dict)
    log_sd: float = 0.10
    family_log_sd: float = 0.0
    ttft_log_sd: float = 0.40
    rows: frozenset[str] = frozenset()
    source: str = "nothing was fitted"

    def constants(self, key: ClassKey) -> Constants:
        """Constants of a class, or of the finest level above it that has any."""
        found = self.level(key)
        return NO_CONSTANTS if found is None else self.classes[found]

    def level(self, key: ClassKey) -> ClassKey | None:
        """The finest level of a class that has constants.

        A version that nobody measured has those of the nearest measured one of the same release, which its
        first two numbers name: the last one before it, or the first after it, of those with rows enough to
        speak for others. Of several benchmarks it is the one with the most rows.
        """
        engine, version, benchmark = (*key, "", "", "")[:3]
        alike = [
            known
            for known in self.classes
            if len(known) == 3 and known[0] == engine and release(known[1]) == release(version) != ""
        ]

        def distance(known: ClassKey) -> tuple[bool, int, int, ClassKey]:
            rank = ordered.index(_numbers(known[1])) - ordered.index(_numbers(version))
            return (rank > 0, abs(rank), -self.counts.get(known, 0), known)

        ordered = sorted({_numbers(version), *(_numbers(known[1]) for known in alike)})
        exact = sorted((known for known in alike if known[1] == version), key=distance)
        many = [known for known in alike if self.counts.get(known, FEWEST_ROWS) >= FEWEST_ROWS]
        for known in ((engine, version, benchmark), *exact, *sorted(many, key=distance), (engine,), ()):
            if known in self.classes:
                return known
        return None

    def factor(self, key: FamilyKey) -> float | None:
        """On kernels of a model; None for one that nobody measured."""
        return self.factors.get(key)


def release(version: str) -> str:
    """The first two numbers of a version; a version without numbers is its own release."""
    parts = version.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 and parts[0].isdigit() else version


def _numbers(version: str) -> tuple[int, ...]:
    """Numbers of a version, which sort as versions do: 0.5.9 before 0.5.14."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


UNFITTED = FittedConstants()
