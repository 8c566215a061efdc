"""Moments of a traffic that latency and capacity need, derived once per service."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import FloatArray
from planner.specs import Dtype, Model, Period, Service, Slo, Speculation, Workload, tokens_per_step
from planner.transformer import equivalent_tokens

LEAST_STEPS = 0.05  # stands for none, where formulas divide by a request's decode steps


def thinned_scv(scv: float, share: float) -> float:
    """Squared coefficient of variation of a random share of a renewal stream: ``1 + q (c^2 - 1)``. [1]"""
    return 1 + share * (scv - 1)


def timeless(service: Service) -> Service:
    """`service` without limits and names, at a rate of 1: what the times of prompts and steps depend on, and
    with their formats and lengths what may be kept of them."""
    constant = (Period(name="", hours=1.0, request_rate=1.0),)
    workload = replace(service.workload, name="", citation="", note="", periods=constant)
    return replace(service, workload=workload, slo=Slo(targets=()), label="", measured=None)


def unaccepted_tokens(model: Model, kv_cache: Dtype, speculation: Speculation | None) -> float:
    """Room that a sequence keeps in the KV cache for tokens that are verified and may be rejected, and for
    the recurrent states before them, in tokens of full attention. [tok]"""
    if speculation is None:
        return 0.0
    states = float(equivalent_tokens(model, kv_cache, 0.0))
    return speculation.rows + speculation.draft_tokens * states


@dataclass(frozen=True, slots=True)
class Traffic:
    """A workload as arrays.

    Attributes
    ----------
    isl, isl_weights : ndarray, shape (points,)
        Prompt lengths and their shares. [tok, 1]
    query, cached : ndarray, shape (points,)
        Tokens of each prompt that are computed, and found in the prefix cache. [tok]
    osl, osl_weights : ndarray
        Output lengths and their shares. [tok, 1]
    mean_isl, mean_query, mean_osl : float
        [tok]
    decode_context : float
        Mean context over decode steps, ``E[osl (isl + osl/2)] / E[osl]``. [tok]
    reserved, reserved_sd : float
        Mean and standard deviation, over sequences that decode, of ``isl + osl``: what a sequence
        needs in the KV cache by its end. [tok]
    longest_isl, longest : float
        Longest prompt, and longest prompt plus longest output. [tok]
    arrival_scv : float
        Squared coefficient of variation of inter-arrival times. [1]
    tokens_per_step : float
        Mean tokens that a decode step emits for a sequence. How that differs from request to request is not
        known, and not counted. [tok]
    unaccepted : float
        Tokens beside its own that a decoding sequence keeps room for; `reserved` counts them. [tok]
    """

    isl: FloatArray
    isl_weights: FloatArray
    query: FloatArray
    cached: FloatArray
    osl: FloatArray
    osl_weights: FloatArray
    mean_isl: float
    mean_query: float
    mean_osl: float
    decode_context: float
    reserved: float
    reserved_sd: float
    longest_isl: float
    longest: float
    arrival_scv: float
    tokens_per_step: float = 1.0
    unaccepted: float = 0.0

    @property
    def timed(self) -> tuple[FloatArray, FloatArray]:
        """Output lengths of requests that have a TPOT, those of one token left out, and their shares among
        themselves; empty where no request has one. [tok, 1]"""
        long = self.osl > 1.0
        weights = self.osl_weights[long]
        return self.osl[long], weights / max(float(weights.sum()), 1e-12)

    @property
    def has_tpot(self) -> bool:
        """Whether any request has more than one output token."""
        return bool(np.any(self.osl > 1.0))

    @property
    def colocated_steps(self) -> float:
        """Decode steps of a colocated request, on average: its prompt's last step makes the first token."""
        return max((self.mean_osl - 1.0) / self.tokens_per_step, LEAST_STEPS)

    @property
    def decode_steps(self) -> float:
        """Steps of a request on a decode replica, on average: the first one makes the first token, before
        anything is drafted."""
        return self.mean_osl - (self.mean_osl - 1.0) * (1 - 1 / self.tokens_per_step)

    @property
    def osl_scv(self) -> float:
        """Squared coefficient of variation of output lengths. [1]"""
        return max(float(self.osl_weights @ self.osl**2) / self.mean_osl**2 - 1, 0.0)

    @property
    def mean_cached(self) -> float:
        """Mean tokens of a prompt that are found in the prefix cache. [tok]"""
        return self.mean_isl - self.mean_query

    @property
    def mean_area(self) -> float:
        """Mean query-key pairs of a prompt under the causal mask. [tok^2]"""
        return float(np.sum(self.isl_weights * self.query * (self.cached + self.query / 2)))

    def of_lengths(self, isl_weights: FloatArray) -> Traffic:
        """The part of the traffic whose prompts have these shares; outputs are taken as independent. [1]"""
        mean_isl = float(isl_weights @ self.isl)
        shift = mean_isl - self.mean_isl
        return replace(
            self,
            isl_weights=isl_weights,
            mean_isl=mean_isl,
            mean_query=float(isl_weights @ self.query),
            decode_context=max(self.decode_context + shift, 1.0),
            reserved=max(self.reserved + shift, 1.0),
        )

    @classmethod
    def of_service(cls, service: Service) -> Traffic:
        """Of a service's workload and draft; reserved tokens count what the model keeps of a sequence."""
        traffic, model = cls.of(service.workload), service.model
        dtype = service.precision.kv_cache
        if service.speculation is not None:
            traffic = replace(
                traffic,
                tokens_per_step=tokens_per_step(service.speculation),
                unaccepted=unaccepted_tokens(model, dtype, service.speculation),
            )
        longest = np.array([1.0, traffic.longest])
        if np.allclose(equivalent_tokens(model, dtype, longest), longest):  # every layer keeps every token
            return replace(traffic, reserved=traffic.reserved + traffic.unaccepted)
        biased = traffic.osl_weights * traffic.osl / traffic.mean_osl
        weights = traffic.isl_weights[:, None] * biased
        kept = equivalent_tokens(model, dtype, traffic.isl[:, None] + traffic.osl)
        mean = float(np.sum(weights * kept))
        variance = float(np.sum(weights * (kept - mean) ** 2))
        return replace(traffic, reserved=mean + traffic.unaccepted, reserved_sd=float(np.sqrt(variance)))

    @classmethod
    def of(cls, workload: Workload) -> Traffic:
        lengths = workload.lengths
        isl, isl_weights = np.array(lengths.isl.points), np.array(lengths.isl.weights)
        osl, osl_weights = np.array(lengths.osl.points), np.array(lengths.osl.weights)
        cached = np.minimum(np.round(workload.prefix_hit_rate * isl), isl - 1)
        query = isl - cached
        mean_isl = float(isl_weights @ isl)
        mean_osl = float(osl_weights @ osl)
        biased = osl_weights * osl / mean_osl  # a decoding sequence is seen in proportion to its length
        output = float(biased @ osl)
        output_variance = float(biased @ (osl - output) ** 2)
        prompt_variance = float(isl_weights @ (isl - mean_isl) ** 2)
        return cls(
            isl=isl,
            isl_weights=isl_weights,
            query=query,
            cached=cached,
            osl=osl,
            osl_weights=osl_weights,
            mean_isl=mean_isl,
            mean_query=float(isl_weights @ query),
            mean_osl=mean_osl,
            decode_context=lengths.isl_per_output_token + output / 2,
            reserved=lengths.isl_per_output_token + output,
            reserved_sd=float(np.sqrt(prompt_variance + output_variance)),
            longest_isl=lengths.isl.maximum,
            longest=lengths.longest,
            arrival_scv=workload.arrival_scv,
        )
