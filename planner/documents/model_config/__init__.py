"""A model's shape from the ``config.json`` of a checkpoint, as Hugging Face publishes it.

Decoders of the families in :mod:`~planner.documents.model_config.families`. Whatever else a
configuration asks for is refused with the key that asks for it: a shape that is nearly right is worse
than none. No number has a silent default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.documents.files import file_error, read_text
from planner.documents.model_config.families import Family, find_family
from planner.documents.model_config.formats import number_formats
from planner.documents.model_config.layers import layer_runs
from planner.documents.model_config.reader import MAX_NUMBER, NESTED, Config, Reader
from planner.documents.model_config.unsupported import check_supported
from planner.documents.yaml_text import parse_tree
from planner.errors import Problem, SpecError
from planner.specs import Model

__all__ = ["NESTED", "load_model_config", "model_from_config", "parse_model_config"]

_QUANTIZATION_FILE = "hf_quant_config.json"  # ModelOpt's, beside the configuration
_NO_FACTOR = ("su", "longrope", "llama3", "default", "mrope", "proportional")
_MULTI_TOKEN = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")


def load_model_config(path: str | Path) -> Model:
    """Read a ``config.json``, or that of a model directory, with ModelOpt's file beside it.

    Raises
    ------
    SpecError
        With every problem of the file; unsupported shapes name the key that makes them so.
    """
    path = Path(path)
    if path.is_dir():
        path /= "config.json"
    text = read_text(path)
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    beside = path.with_name(_QUANTIZATION_FILE)
    if path.name != "config.json" or not beside.is_file():
        return parse_model_config(text, str(path), name)
    quantization = _parsed(read_text(beside), str(beside)).get("quantization")
    if not isinstance(quantization, dict):
        raise file_error(beside, "must hold a mapping named quantization")
    return parse_model_config(text, str(path), name, quantization)


def parse_model_config(
    text: str, source: str, name: str, quantization: Mapping[str, Any] | None = None
) -> Model:
    """Shape from the text of a ``config.json``; `source` names it in messages. See `load_model_config`.

    Parameters
    ----------
    quantization : mapping, optional
        What ModelOpt's second file says; the configuration's own section wins.
    """
    config = _parsed(text, source)
    if quantization is not None and not _has_quantization(config):
        config = {**config, "quantization_config": {"quant_method": "modelopt", **quantization}}
    try:
        return model_from_config(config, name, source)
    except SpecError as error:
        raise SpecError.of_file(source, _with_lines(error.problems, text, source)) from None


def _has_quantization(config: Config) -> bool:
    reader = Reader.of(config)
    return any(reader.either(key) is not None for key in ("quantization_config", "compression_config"))


def _parsed(text: str, source: str) -> dict[str, Any]:
    """JSON text as a mapping, with no key given twice."""
    twice = False

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        found = dict(items)
        twice = twice or len(found) < len(items)
        return found

    try:
        config = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        problem = Problem(key="", rule=f"is not valid JSON: {error.msg}", line=error.lineno)
        raise SpecError.of_file(source, [problem]) from None
    except RecursionError:
        raise file_error(source, "is not valid JSON: nested too deeply") from None
    except ValueError:
        raise file_error(source, "is not valid JSON: a number has too many digits") from None
    if not isinstance(config, dict):
        raise file_error(source, "must be a mapping of keys at top level")
    if twice:
        raise SpecError.of_file(source, _with_lines((), text, source) or [Problem(key="", rule=_TWICE)])
    return config


_TWICE = "has a key that is given twice"


def _with_lines(problems: tuple[Problem, ...], text: str, source: str) -> list[Problem]:
    """The problems with their lines, and keys that are given twice."""
    try:
        tree, duplicates = parse_tree(text, source)
    except SpecError:  # what JSON allows and YAML does not, such as tabs
        return list(problems)
    return [replace(p, line=tree.line(tuple(p.key.split(".")))) for p in problems] + duplicates


# --------------------------------------------------------------------------------------------
# From keys to shape


def model_from_config(config: Config, name: str, source: str) -> Model:
    """Shape from a parsed configuration.

    Raises
    ------
    SpecError
        Its `problems` hold everything wrong, by key.
    """
    reader = Reader.of(config)
    try:
        model = _model(reader, name, source)
    except SpecError as error:  # a shape that the types refuse
        reader.problems.append(Problem(key="", rule=str(error)))
        model = None
    if reader.problems or model is None:
        problems = list(dict.fromkeys(reader.problems)) or [Problem(key="", rule="describes no layers")]
        raise SpecError.of_file(source, problems)
    return model


def _model(reader: Reader, name: str, source: str) -> Model | None:
    family = find_family(reader)
    check_supported(reader, family)
    hidden, vocab = reader.need("hidden_size"), reader.need("vocab_size")
    context = _context(reader)
    if family is None:  # say what else such a file lacks
        width = "moe_intermediate_size" if reader.get("moe_intermediate_size") else "intermediate_size"
        reader.needed("num_hidden_layers", "num_attention_heads", width)
        return None
    runs = layer_runs(reader, family, hidden or 0, context)
    formats = number_formats(reader, runs, hidden or 0)
    tied = reader.outer_flag("tie_word_embeddings")
    _note_what_is_left_out(reader)
    if reader.problems or hidden is None or vocab is None or context is None or not runs:
        return None
    return Model(
        name=name,
        hidden=hidden,
        layers=runs,
        vocab=vocab,
        tied_embeddings=family.tied if tied is None else tied,
        max_context=context,
        checkpoint_dtype=formats.weights,
        checkpoint_attention=formats.attention,
        checkpoint_experts=formats.experts,
        checkpoint_kv_cache=formats.kv_cache,
        norms_per_layer=family.norms,
        embedding_norms=family.embedding_norms,
        extra_parameters=_extra_parameters(reader, family, hidden, vocab),
        source=source,
        notes=tuple(dict.fromkeys(reader.notes)),
    )


def _extra_parameters(reader: Reader, family: Family, hidden: int, vocab: int) -> int:
    """A table of learned positions, and the bias of the head."""
    rows = 0
    if family.positions is not None:
        rows = (reader.whole("max_position_embeddings") or 0) + family.positions
    return rows * hidden + (vocab if family.head_bias else 0)


def _context(reader: Reader) -> int | None:
    """Longest sequence that an engine admits by default: positions, times the factor of a scaling."""
    if reader.get("model_max_length") is not None:
        return reader.whole("model_max_length")
    positions = reader.need("max_position_embeddings")
    scaling = reader.get("rope_scaling")
    if not isinstance(scaling, dict):
        scaling = reader.get("rope_parameters")
    if not isinstance(scaling, dict) or positions is None:
        return positions
    kind: Any = scaling.get("rope_type", scaling.get("type"))
    factor: Any = scaling.get("factor")
    original: Any = scaling.get("original_max_position_embeddings")
    # Gemma 3 and models of one shape per kind of layer count their scaling in already.
    if kind in _NO_FACTOR or factor is None or not isinstance(kind, str) or _counts_scaling_in(reader):
        return positions
    if type(factor) not in (int, float) or not 0 < factor <= MAX_NUMBER:
        reader.problem("rope_scaling", "must have a factor > 0", factor)
        return None
    if kind == "yarn" and original is not None:
        if type(original) is not int or not 0 < original <= MAX_NUMBER:
            rule = "must have a whole number > 0 as original_max_position_embeddings"
            reader.problem("rope_scaling", rule, original)
            return None
        positions = int(original)
    context = round(positions * float(factor))
    if not 0 < context <= MAX_NUMBER:
        reader.problem("rope_scaling", f"makes a context of more than {MAX_NUMBER:,} tokens, or none", factor)
        return None
    return context


def _counts_scaling_in(reader: Reader) -> bool:
    kind = reader.get("model_type")
    return isinstance(kind, str) and kind.startswith("gemma3")


def _note_what_is_left_out(reader: Reader) -> None:
    if any(isinstance(reader.either(key), int) and reader.either(key) > 0 for key in _MULTI_TOKEN):
        reader.notes.append("multi-token prediction layers are not counted")
    towers = [k for k in ("vision_config", "audio_config") if isinstance(reader.outer.get(k), dict)]
    if towers:
        what = " and ".join(key.removesuffix("_config") for key in towers)
        reader.notes.append(f"the language model only: no {what} tower")
