"""The shape of a model, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.errors import SpecError
from planner.specs.kinds import Dtype, require_positive


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Grouped-query attention of one layer (multi-head when ``kv_heads == heads``).

    Attributes
    ----------
    head_dim : int
        Independent of ``hidden / heads``.
    bias, output_bias : bool
        Of the query, key and value projections; of the output projection.
    window : int or None
        Sliding window, or length of an attention chunk; None for full attention. [tok]
    gated : bool
        The query projection also makes a gate of the output's width.
    sinks : bool
        One learned logit per head.
    owns_kv : bool
        False where the layer reads the cache of an earlier one: it projects and keeps no keys and values.
    values_are_keys : bool
        One projection serves as keys and values; the cache keeps both.
    qk_norm, spanning_norm : bool
        Queries and keys are normed, head by head or over all heads together; ranks that share the heads
        have to sum what such a norm needs.
    """

    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    qk_norm: bool = False
    window: int | None = None
    output_bias: bool = False
    gated: bool = False
    sinks: bool = False
    owns_kv: bool = True
    values_are_keys: bool = False
    spanning_norm: bool = False

    def __post_init__(self) -> None:
        require_positive("attention", heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim)
        if self.heads % self.kv_heads:
            raise SpecError(f"attention: {self.heads} heads are no multiple of {self.kv_heads} KV heads")


@dataclass(frozen=True, kw_only=True, slots=True)
class Indexer:
    """Picks the tokens that sparse attention reads; keeps one key per token beside the KV cache.

    ``top_k`` [tok] bounds the context that attention reads.
    """

    heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one latent and one rotary key per token for all heads.

    ``query_rank`` is None where queries are projected directly.
    """

    heads: int
    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    indexer: Indexer | None = None

    def __post_init__(self) -> None:
        require_positive(
            "latent attention",
            heads=self.heads,
            query_rank=self.query_rank,
            kv_rank=self.kv_rank,
            nope_dim=self.nope_dim,
            value_dim=self.value_dim,
        )

    @property
    def query_dim(self) -> int:
        """Width of one query head."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class StateMixer:
    """Linear attention or a state-space layer: a constant state per sequence instead of a KV cache.

    Attributes
    ----------
    kind : str
        "gated_delta_net", "mamba2", "lightning", "kda", ...
    heads, groups : int
        Heads of the state, and groups (key heads) that share their inputs; tensor parallelism cuts both.
    input_width, output_width : int
        Columns of the input projections together, rows of the output projection.
    conv_channels, conv_kernel : int
        Short convolution; its window is part of the state.
    state_elements : int
        Elements of the recurrent state. [1]
    vector_parameters : int
        Parameters beside projections and convolution.
    state_dtype : Dtype
        Of the recurrent state; the convolution's window has 16 bits.
    """

    kind: str
    heads: int
    groups: int
    input_width: int
    output_width: int
    conv_channels: int
    conv_kernel: int
    state_elements: int
    vector_parameters: int = 0
    state_dtype: Dtype = Dtype.FP32


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedForward:
    """Dense feed-forward block; ``gated`` has three matrices (SwiGLU), otherwise two."""

    intermediate: int
    gated: bool = True
    bias: bool = False

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureOfExperts:
    """Routed experts with, optionally, experts that every token visits.

    Attributes
    ----------
    intermediate : int
        Of one routed expert.
    shared_intermediate : int
        Of all shared experts together; 0 for none.
    shared_gate : bool
        A learned gate of one column on the shared experts' output.
    router_bias, expert_bias : bool
        One bias per expert in the router; biases in the experts' matrices.
    wide_router : bool
        Engines run the router in 32 bits: its input is widened first.
    latent : int or None
        Width that routed experts work in, reached by projections of their own; None: the model's.
    """

    experts: int
    top_k: int
    intermediate: int
    gated: bool = True
    shared_intermediate: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    wide_router: bool = False
    expert_bias: bool = False
    latent: int | None = None

    def __post_init__(self) -> None:
        require_positive("experts", experts=self.experts, top_k=self.top_k, intermediate=self.intermediate)
        if self.top_k > self.experts:
            raise SpecError(f"experts: a token visits {self.top_k} of only {self.experts}")

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2


Mixer = Attention | LatentAttention | StateMixer


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One decoder layer; a hybrid's layer may lack one of the two parts.

    ``norms`` counts norm weights of size hidden; None: the model's usual number.
    """

    attention: Mixer | None
    feed_forward: FeedForward | MixtureOfExperts | None
    norms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRun:
    """``count`` equal layers that follow one another."""

    count: int
    layer: Layer


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A decoder-only transformer's shape.

    Attributes
    ----------
    layers : tuple of LayerRun
        In order, so that pipeline stages can be cut.
    norms_per_layer : int
        Norm weights of a layer, each of size ``hidden``.
    checkpoint_dtype : Dtype
        Weight format of the checkpoint's own configuration.
    checkpoint_attention, checkpoint_experts : Dtype or None
        Format of mixers and of routed experts where it differs (modules that a quantisation leaves out).
    checkpoint_kv_cache : Dtype or None
        KV cache format that the checkpoint asks for.
    extra_parameters : int
        Weights that no layer holds, replicated on every rank: position tables.
    embedding_norms : int
        Norms of size hidden outside the layers, the final one included.
    notes : tuple of str
        What of the configuration is left out (vision towers, multi-token prediction).
    kinds : tuple of LayerRun
        `layers` by kind, wherever they stand: what time, bytes and FLOP depend on.
    max_context : int
        Longest sequence the model supports. [tok]
    source : str
        Where the shape comes from.
    """

    name: str
    hidden: int
    layers: tuple[LayerRun, ...]
    vocab: int
    tied_embeddings: bool
    max_context: int
    checkpoint_dtype: Dtype = Dtype.BF16
    norms_per_layer: int = 2
    source: str = ""
    checkpoint_attention: Dtype | None = None
    checkpoint_experts: Dtype | None = None
    checkpoint_kv_cache: Dtype | None = None
    extra_parameters: int = 0
    embedding_norms: int = 1
    notes: tuple[str, ...] = ()
    kinds: tuple[LayerRun, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_positive(
            f"model {self.name!r}", hidden=self.hidden, vocab=self.vocab, max_context=self.max_context
        )
        if not self.layers:
            raise SpecError(f"model {self.name!r}: no layers")
        counts: dict[Layer, int] = {}
        for run in self.layers:
            counts[run.layer] = counts.get(run.layer, 0) + run.count
        kinds = tuple(LayerRun(count=count, layer=layer) for layer, count in counts.items())
        object.__setattr__(self, "kinds", kinds)

    @property
    def num_layers(self) -> int:
        return sum(run.count for run in self.layers)

    @property
    def routed(self) -> bool:
        """Whether some layer has routed experts."""
        return any(isinstance(run.layer.feed_forward, MixtureOfExperts) for run in self.kinds)

    @property
    def shape(self) -> str:
        """What checkpoints that run the same kernels have in common, whatever their names and formats."""
        return f"{self.hidden} wide, {self.num_layers} layers, {self.vocab} tokens"


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Formats of weights and KV cache, independent of one another.

    ``attention`` and ``experts`` are those of mixers and routed experts where they differ from ``weights``.
    """

    weights: Dtype
    kv_cache: Dtype
    attention: Dtype | None = None
    experts: Dtype | None = None

    @property
    def of_attention(self) -> Dtype:
        return self.attention or self.weights

    @property
    def of_experts(self) -> Dtype:
        return self.experts or self.weights

    @classmethod
    def of(cls, model: Model, weights: Dtype | None = None, kv_cache: Dtype | None = None) -> Precision:
        """What is asked for, where None stands for the checkpoint's own.

        Modules that the checkpoint keeps in another format keep it as long as its weights do. Without a word
        of the checkpoint the KV cache has 16 bits, also where weights are smaller, as vLLM's "auto".
        """
        own = model.checkpoint_dtype
        if weights is None or {weights, own} == {Dtype.FP8, Dtype.FP8_BLOCK}:
            weights = own  # "fp8" of a checkpoint with block scales is that
        sixteen = own if own.is_16_bit else Dtype.BF16
        return cls(
            weights=weights,
            kv_cache=kv_cache or model.checkpoint_kv_cache or sixteen,
            attention=model.checkpoint_attention if weights is own else None,
            experts=model.checkpoint_experts if weights is own else None,
        )
