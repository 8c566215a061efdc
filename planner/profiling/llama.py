"""A Llama-shaped transformer in torch with random weights: whole steps to hold predictions against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as functional

from planner.profiling.data import random_block
from planner.profiling.fusion import fused
from planner.profiling.kernels import activate, decode_attention, prefill_attention

Step = Callable[[], torch.Tensor]
_SCALE = 0.02  # of weights


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaShape:
    """Sizes of the model, as its configuration has them."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    def config(self) -> dict[str, object]:
        """A configuration in the form of the model hubs."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }


LLAMA_1B = LlamaShape(
    hidden=2048, layers=12, heads=32, kv_heads=8, head_dim=64, intermediate=8192, vocabulary=32000
)
"""0.86 B parameters."""
LLAMA_8B = LlamaShape(
    hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, intermediate=14336, vocabulary=128256
)


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: torch.Tensor
    out: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


class Llama:
    """The model on one device, in bf16. Steps start from hidden states: the embedding is no work."""

    def __init__(self, shape: LlamaShape, device: torch.device) -> None:
        self.shape, self.device = shape, device
        width = shape.heads * shape.head_dim
        keys = shape.kv_heads * shape.head_dim

        def weight(rows: int, columns: int) -> torch.Tensor:
            return random_block(rows * columns, torch.bfloat16, device).view(rows, columns).mul_(_SCALE)

        self._layers = [
            _Layer(
                qkv=weight(width + 2 * keys, shape.hidden),
                out=weight(shape.hidden, width),
                up=weight(2 * shape.intermediate, shape.hidden),
                down=weight(shape.hidden, shape.intermediate),
            )
            for _ in range(shape.layers)
        ]
        self._head = weight(shape.vocabulary, shape.hidden)
        self._ones = torch.ones(shape.hidden, dtype=torch.bfloat16, device=device)
        self._norm = fused(_norm, device)
        self._rotate = fused(_rotate, device)
        self._activate = fused(activate, device)

    def prefill(self, tokens: int, backend: str) -> Step:
        """A step that computes one prompt and the logits of its last token."""
        x = random_block(tokens * self.shape.hidden, torch.bfloat16, self.device).view(1, tokens, -1)
        caches = self._caches(1, tokens)
        turn = self._angles(tokens, 0)
        return partial(self._step, x, caches, turn, 0, partial(prefill_attention, backend=backend))

    def decode(self, batch: int, context: int, backend: str) -> Step:
        """A step that adds one token to each of `batch` sequences, `context` long with it."""
        x = random_block(batch * self.shape.hidden, torch.bfloat16, self.device).view(batch, 1, -1)
        caches = self._caches(batch, context)
        turn = self._angles(1, context - 1)
        group = self.shape.heads // self.shape.kv_heads

        def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            grouped = q.view(batch, self.shape.kv_heads, group, self.shape.head_dim)
            return decode_attention(grouped, k, v, backend).view(q.shape)

        return partial(self._step, x, caches, turn, context - 1, attention)

    def _caches(self, batch: int, context: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        s = self.shape
        size = batch * s.kv_heads * context * s.head_dim

        def cache() -> torch.Tensor:
            flat = random_block(size, torch.bfloat16, self.device)
            return flat.view(batch, s.kv_heads, context, s.head_dim)

        return [(cache(), cache()) for _ in range(s.layers)]

    def _angles(self, tokens: int, first: int) -> tuple[torch.Tensor, torch.Tensor]:
        half = self.shape.head_dim // 2
        inverse = 500_000.0 ** (-torch.arange(half, device=self.device) / half)
        angles = torch.arange(first, first + tokens, device=self.device)[:, None] * inverse
        both = torch.cat([angles, angles], dim=-1)[None, :, None, :]
        return both.cos().bfloat16(), both.sin().bfloat16()

    def _step(
        self,
        x: torch.Tensor,
        caches: list[tuple[torch.Tensor, torch.Tensor]],
        turn: tuple[torch.Tensor, torch.Tensor],
        at: int,
        attention: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        s = self.shape
        batch, tokens, _ = x.shape
        residual, addend = x, None
        for layer, (k_cache, v_cache) in zip(self._layers, caches, strict=True):
            normed, residual = self._norm(residual, addend, self._ones)
            qkv = functional.linear(normed, layer.qkv).view(batch, tokens, -1, s.head_dim)
            qk = self._rotate(qkv[:, :, : s.heads + s.kv_heads], *turn)
            k_cache[:, :, at : at + tokens] = qk[:, :, s.heads :].transpose(1, 2)
            v_cache[:, :, at : at + tokens] = qkv[:, :, s.heads + s.kv_heads :].transpose(1, 2)
            mixed = attention(qk[:, :, : s.heads].transpose(1, 2), k_cache, v_cache)
            addend = functional.linear(mixed.transpose(1, 2).reshape(batch, tokens, -1), layer.out)
            normed, residual = self._norm(residual, addend, self._ones)
            addend = functional.linear(self._activate(functional.linear(normed, layer.up)), layer.down)
        normed, _ = self._norm(residual[:, -1:], addend[:, -1:] if addend is not None else None, self._ones)
        return functional.linear(normed, self._head)


def _norm(
    x: torch.Tensor, addend: torch.Tensor | None, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    residual = x if addend is None else x + addend
    return functional.rms_norm(residual, (residual.shape[-1],), weight), residual


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
