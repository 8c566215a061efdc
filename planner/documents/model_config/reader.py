"""Looks keys of a configuration up under all their names, checks their kinds, collects what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from planner.documents.tree import MAX_SHOWN, shorten
from planner.errors import Problem

Config = Mapping[str, Any]
T = TypeVar("T")

NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where models of several modalities keep the language model's configuration."""

NAMES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position_embeddings": (
        "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length",
        "max_sequence_length", "model_max_length",
    ),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": (
        "num_experts_per_tok", "moe_topk", "top_k_experts", "num_experts_per_token", "experts_per_token",
    ),
    "shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert"),
    "shared_width": ("shared_expert_intermediate_size", "shared_intermediate_size"),
}  # fmt: skip
"""Names of each number, the usual one first."""

MAX_NUMBER = 2**31 - 1
MAX_LAYERS = 2_000
_MAX_NESTING = 8


@dataclass(slots=True)
class Reader:
    """Reads the section of the language model; ``outer`` is the file's top level.

    Attributes
    ----------
    section : str
        Path of the section, empty at top level.
    defaults : mapping of int
        Numbers that published files of the family leave to its class.
    problems, notes : list
        What is wrong, and what a reader of the shape has to know.
    """

    section: str
    config: Config
    outer: Config
    defaults: Mapping[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, config: Config) -> Reader:
        section, inner = _language_section(config)
        return cls(section, inner, config)

    def get(self, key: str) -> Any:
        """Value of a key; null is absent."""
        return self.config.get(key)

    def either(self, key: str) -> Any:
        """Value of a key that may also stand at top level."""
        return self.config[key] if self.config.get(key) is not None else self.outer.get(key)

    def given(self, key: str) -> tuple[str, Any] | None:
        """Name and value of a number that the section has under one of its names."""
        for name in NAMES.get(key, (key,)):
            value = self.get(name)
            if value is not None:
                return name, value
        return None

    # ----------------------------------------------------------------------------------------
    # Kinds of values

    def need(self, key: str) -> int | None:
        """A whole number > 0; where it is absent, the class's own or a problem."""
        found = self.given(key)
        if found is None:
            if key in self.defaults:
                value = self.defaults[key]
                self.notes.append(f"{key} is not given: {value:,}, as the class of this model type has it")
                return value
            self._missing(key)
            return None
        return self._whole(*found, least=1)

    def whole(self, key: str, least: int = 1) -> int | None:
        """A whole number >= `least`, or None where it is absent or wrong."""
        found = self.given(key)
        return None if found is None else self._whole(*found, least=least)

    def needed(self, *keys: str) -> tuple[int, ...] | None:
        """Several whole numbers > 0, or None where one is missing; every one is looked at."""
        values = [self.need(key) for key in keys]
        found = tuple(v for v in values if v is not None)
        return found if len(found) == len(values) else None

    def _whole(self, name: str, value: object, least: int) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.problem(name, f"must be a whole number {f'>= {least}' if least != 1 else '> 0'}", value)
            return None
        if value > MAX_NUMBER:
            self.problem(name, f"must not exceed {MAX_NUMBER:,}", value)
            return None
        return value

    def flag(self, keys: Sequence[str], default: bool) -> bool:
        """The first of some switches that is given."""
        for key in keys:
            value = self.get(key)
            if value is not None:
                if not isinstance(value, bool):
                    self.problem(key, "must be true or false", value)
                return bool(value)
        return default

    def outer_flag(self, key: str) -> bool | None:
        """A switch that may also stand at top level; None where it is absent."""
        value = self.either(key)
        if value is not None and not isinstance(value, bool):
            self.problem(key, "must be true or false", value)
        return None if value is None else bool(value)

    def entries(self, key: str, kind: type[T], length: int | None = None) -> list[T] | None:
        """A list whose entries are all of one kind, one per layer where `length` says so."""
        value = self.get(key)
        if value is None:
            return None
        wrong = not isinstance(value, list) or not all(type(v) is kind for v in value)
        if wrong or (length is not None and len(value) != length):
            what = "whole numbers" if kind is int else "names"
            self.problem(key, f"must be a list of {f'{length} ' if length else ''}{what}", value)
            return None
        return list(value)

    # ----------------------------------------------------------------------------------------
    # Problems

    def _missing(self, key: str) -> None:
        names = NAMES.get(key, (key,))
        under = f" under the names {', '.join(names)}" if len(names) > 1 else ""
        self.problem(names[0], f"is missing{under}; looked at top level and in {', '.join(NESTED)}")

    def problem(self, key: str, rule: str, value: object = None, suggestion: str = "") -> None:
        path = (
            f"{self.section}.{key}" if self.section and (key in self.config or key not in self.outer) else key
        )
        self.problems.append(Problem(key=path, rule=rule, value=shown(value), suggestion=suggestion))


def shown(value: object) -> str:
    """A value as a message quotes it; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return "a mapping of keys"
    if isinstance(value, list):
        return "a list" if len(value) != 1 or isinstance(value[0], dict | list) else f"[{shown(value[0])}]"
    if isinstance(value, str):
        return shorten(json.dumps(value[: 2 * MAX_SHOWN]))
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4 * MAX_SHOWN:
        return "a number of many digits"
    return shorten(json.dumps(value))


def _language_section(config: Config) -> tuple[str, Config]:
    """Path and content of the section that holds the language model; top level where it has the numbers."""
    open_sections: list[tuple[str, Config]] = [("", config)]
    for path, section in open_sections:
        if _has_layers(section):
            return path, section
        if path.count(".") < _MAX_NESTING:
            open_sections += _subsections(path, section)
    return "", config


def _has_layers(section: Config) -> bool:
    names = (*NAMES["num_hidden_layers"], "hybrid_override_pattern", "layers_block_type")
    return any(section.get(name) is not None for name in names)


def _subsections(path: str, section: Config) -> Iterator[tuple[str, Config]]:
    for key in NESTED:
        inner = section.get(key)
        if isinstance(inner, dict):
            yield f"{path}.{key}" if path else key, inner
