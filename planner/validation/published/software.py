"""Serving software of published rows: how it launches kernels, batches prompts, and keeps its KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from planner.engines import estimated_engine
from planner.specs import Engine
from planner.units import MICRO, MILLI

EAGER_LAYER = 550 * MICRO
"""Host time per layer of a step whose kernels Python launches one by one. [s]

Of two public runs of vLLM without captured graphs: Llama-2-7B, 12 ms a token over 32 layers
(https://github.com/vllm-project/vllm/pull/1440, 2023), and Qwen2.5-Omni-7B, 22 to 23 ms over 28
(https://github.com/vllm-project/vllm-omni/issues/7960, 2026): the geometric mean of 0.38 and 0.8 ms.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """One framework at one time.

    Attributes
    ----------
    name : str
        What a host constant belongs to, together with whose machines these are and the GPUs' vendor.
    prefixes : tuple of str
        Of the framework's published name; the longest that fits counts.
    eager_prompts, eager_decode : bool
        Whether Python launches the kernels of prompts, of decode steps, one by one.
    graph_context : float
        Contexts beyond which decode steps run without captured graphs. [tok]
    step : float
        Host time of a step with captured graphs or of a C++ runtime. [s]
    whole_prompts : bool
        Whether a step takes whole prompts, up to the model's context; else up to `token_budget` tokens.
    token_budget : float
        Tokens of a step of prompts; infinite for the whole batch at once. [tok]
    small_cache : bool
        Whether weights of 8 and 4 bits come with an fp8 KV cache.
    memory_utilization : float
        Share of the memory taken.
    max_num_seqs : int
        Sequences in a step.
    paged : bool
        Whether requests that do not fit wait; else the batch is as it is said to be.
    fitted : bool
        Whether one host constant describes it.
    """

    name: str
    prefixes: tuple[str, ...]
    eager_prompts: bool = False
    eager_decode: bool = False
    graph_context: float = math.inf
    step: float = 0.0
    whole_prompts: bool = False
    token_budget: float = math.inf
    small_cache: bool = False
    memory_utilization: float = 0.9
    max_num_seqs: int = 256
    paged: bool = True
    fitted: bool = True

    def engine(self) -> Engine:
        """An engine whose steps are kernels alone: what the host adds comes on top.

        Batches are not padded: the published ones are captured sizes themselves.
        """
        return replace(
            estimated_engine("vllm"),
            step_overhead=0.0,
            sequence_overhead=0.0,
            eager_overhead=0.0,
            graph_batch_sizes=(1,),
            memory_utilization=self.memory_utilization,
            max_num_seqs=self.max_num_seqs,
        )

    def serving_engine(self) -> Engine:
        """The engine with its host time, for queues."""
        return replace(
            estimated_engine("vllm"),
            step_overhead=self.step,
            memory_utilization=self.memory_utilization,
            max_num_seqs=self.max_num_seqs,
        )


_TENSORRT_STEP = 0.3 * MILLI  # ours: a C++ runtime; constants of its rows lie between 0.1 and 0.8 ms [s]
_VLLM_STEP = 0.8 * MILLI  # ours, as in the engine's file [s]

SOFTWARE = (
    Software(
        name="vLLM of 2023",
        prefixes=("vLLM-era (2023",),
        eager_prompts=True,
        eager_decode=True,
    ),
    Software(
        name="vLLM of 2024",
        prefixes=("vLLM",),
        step=_VLLM_STEP,
        whole_prompts=True,  # chunked prefill is off: a step takes max(2048, context) tokens
    ),
    Software(
        name="vLLM 0.7",
        prefixes=("vLLM 0.7",),
        eager_prompts=True,
        graph_context=8192.0,  # default of --max-seq-len-to-capture in 0.7.3
        step=_VLLM_STEP,
        whole_prompts=True,
        fitted=False,  # graphs for one phase and not for the other: one constant cannot describe it
    ),
    Software(
        name="vLLM 0.20",
        prefixes=("vLLM 0.20",),
        step=_VLLM_STEP,
        token_budget=8192.0,
        fitted=False,
    ),
    Software(
        name="TensorRT-LLM static",
        prefixes=("TensorRT-LLM 0.5", "TensorRT-LLM 0.9"),
        step=_TENSORRT_STEP,
        small_cache=True,
        paged=False,
    ),
    Software(
        name="TensorRT-LLM of 2024",
        prefixes=("TensorRT-LLM",),
        step=_TENSORRT_STEP,
    ),
    Software(
        name="TensorRT-LLM in flight",
        prefixes=("TensorRT-LLM 0.14", "TensorRT-LLM 0.17", "TensorRT-LLM 1.", "NIM"),
        step=_TENSORRT_STEP,
        small_cache=True,
        token_budget=8192.0,
        max_num_seqs=2048,
        fitted=False,
    ),
    Software(name="DeepSpeed", prefixes=("Deepspeed",), step=_VLLM_STEP),
    Software(name="DeepSpeed-MII", prefixes=("Deepspeed-MII",), step=_VLLM_STEP),
)


def software_of(framework: str) -> Software | None:
    """The entry with the longest prefix of `framework`, in any case; None where there is none."""
    folded = framework.lower()
    matches = [(len(p), s) for s in SOFTWARE for p in s.prefixes if folded.startswith(p.lower())]
    return max(matches, key=lambda match: match[0])[1] if matches else None
