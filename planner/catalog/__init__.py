"""What is known without asking the user: GPUs, their prices, models, and traffic of public traces, by name.

Names are looked up in any case; aliases count. Reading one GPU reads one file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from planner.catalog.clouds import CloudInstance, cloud_instances, load_instance
from planner.documents.catalogue import ModelEntry, ModelsDocument, QuantileTable, TrafficDocument
from planner.documents.files import file_error, read_text, resolved_path
from planner.documents.gpu_profile import GpuProfileDocument, load_gpu_profile
from planner.documents.model_config import load_model_config, model_from_config
from planner.documents.names import did_you_mean, unknown_name
from planner.documents.source import load_document, parse_document
from planner.documents.traffic_preset import described, preset_text
from planner.errors import SpecError
from planner.lengths import marginal_from_quantiles
from planner.specs import GPU, Lengths, Marginal, Model
from planner.traces import Trace, measure

__all__ = [
    "CloudInstance",
    "TrafficPreset",
    "cloud_instances",
    "gpu_name",
    "gpu_names",
    "load_gpu",
    "load_gpu_document",
    "load_instance",
    "load_model",
    "load_traffic",
    "model_names",
    "model_variants",
    "names_file",
    "traffic_names",
    "traffic_of",
]

_FOLDER = Path(str(files(__name__)))
_GPU_FOLDER = Path(str(files("gpu_profiles")))
_MAX_SHOWN = 120  # characters of an unknown name
_YAML_SUFFIXES = (".yaml", ".yml")


def _unknown(kind: str, name: str, known: tuple[str, ...]) -> SpecError:
    rule, suggestion = unknown_name(kind, name, known)
    return SpecError(f"{rule} {name!r}: {suggestion}")


def _is_path(name: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a name can only be meant as a path."""
    return name.startswith(("/", "./", "../", "~", ".\\")) or name.lower().endswith(suffixes)


def names_file(key: str, name: str) -> bool:
    """Whether what a file says under `key` (model, gpu, preset) stands for a file, not for an entry here."""
    if key == "model":
        return _is_path(name, (".json",)) or name.strip().lower() not in _models_by_name()
    return _is_path(name, _YAML_SUFFIXES)


# --------------------------------------------------------------------------------------------
# GPUs


@cache
def gpu_names() -> tuple[str, ...]:
    """Canonical names of the GPUs that have a profile, sorted."""
    return tuple(sorted(path.stem for path in _GPU_FOLDER.glob("*.yaml")))


def load_gpu(name_or_path: str | Path, base: str | Path | None = None) -> GPU:
    """A GPU by name, alias, or the path of a profile.

    Parameters
    ----------
    name_or_path : str or Path
        A path ends in .yaml or starts with a dot, a slash or a tilde.
    base : str or Path, optional
        Where relative paths start; the working directory when None.

    Raises
    ------
    SpecError
        Unknown name, or a profile that breaks a rule.
    """
    if isinstance(name_or_path, Path) or _is_path(name_or_path, _YAML_SUFFIXES):
        return load_gpu_profile(resolved_path(name_or_path, base))
    return _known_gpu(gpu_name(name_or_path))


def load_gpu_document(name_or_path: str | Path) -> GpuProfileDocument:
    """The file of a GPU by name, alias, or path: its figures with their sources, in the file's units.

    Raises
    ------
    SpecError
        Unknown name, or a profile that breaks a rule.
    """
    if isinstance(name_or_path, Path) or _is_path(name_or_path, _YAML_SUFFIXES):
        path = resolved_path(name_or_path, None)
    else:
        path = _GPU_FOLDER / f"{gpu_name(name_or_path)}.yaml"
    return load_document(path, GpuProfileDocument).model


def gpu_name(name: str) -> str:
    """Canonical name of a GPU from its name or one of its aliases, in any case.

    Raises
    ------
    SpecError
        Unknown name.
    """
    folded = name.strip().lower()
    if folded in gpu_names():
        return folded
    aliases = _gpu_aliases()
    if folded in aliases:
        return aliases[folded]
    raise _unknown("GPU", name, gpu_names())


@cache
def _known_gpu(name: str) -> GPU:
    return load_gpu_profile(_GPU_FOLDER / f"{name}.yaml")


@cache
def _gpu_aliases() -> dict[str, str]:
    """Canonical name by alias, from the ``aliases:`` line of every profile.

    Only that line is parsed: whole profiles would cost ten times as much.
    """
    found: dict[str, str] = {}
    for name in gpu_names():
        text = read_text(_GPU_FOLDER / f"{name}.yaml")
        line = next((line for line in text.splitlines() if line.startswith("aliases:")), "aliases: []")
        found |= {str(alias).lower(): name for alias in yaml.safe_load(line)["aliases"]}
    return found


# --------------------------------------------------------------------------------------------
# Models


@dataclass(frozen=True, slots=True)
class _Named:
    """An id of the catalogue and where its configuration comes from."""

    id: str
    config: Mapping[str, Any]
    source: str


@cache
def _models() -> tuple[ModelEntry, ...]:
    return load_document(_FOLDER / "models.yaml", ModelsDocument).model.models


@cache
def _models_by_name() -> dict[str, _Named]:
    """Every name of every model in lower case; an earlier model keeps a short name it shares."""
    found: dict[str, _Named] = {}
    for entry in _models():
        source = entry.source + (" (unverified)" if entry.unverified else "")
        named = [_Named(id_, entry.config, source) for id_ in entry.ids]
        named += [_Named(id_, {**entry.config, **keys}, source) for id_, keys in entry.variants.items()]
        for one in named:
            found.setdefault(one.id.lower(), one)
            found.setdefault(one.id.rpartition("/")[2].lower(), one)
        for alias in entry.aliases:
            found.setdefault(alias.lower(), named[0])
    return found


@cache
def model_names() -> tuple[str, ...]:
    """Canonical names of the catalogue's models, in its order."""
    return tuple(entry.ids[0] for entry in _models())


def model_variants(name: str) -> tuple[str, ...]:
    """Other published checkpoints of a model of the catalogue: the same shape in other formats."""
    folded = name.strip().lower()
    entries = (e for e in _models() if folded in {id_.lower() for id_ in (*e.ids, *e.variants)})
    return tuple(id_ for entry in entries for id_ in entry.variants if id_.lower() != folded)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # no name that a file could have
        return False


def load_model(name_or_path: str | Path, base: str | Path | None = None) -> Model:
    """A model by name, or by the path of a ``config.json`` or of a model directory.

    The catalogue wins over a directory of the same name; ``./name`` is always a path.

    Parameters
    ----------
    name_or_path : str or Path
    base : str or Path, optional
        Where relative paths start; the working directory when None.

    Raises
    ------
    SpecError
        Unknown name, or a configuration that cannot be modelled.
    """
    if isinstance(name_or_path, Path) or _is_path(name_or_path, (".json",)):
        return load_model_config(resolved_path(name_or_path, base))
    found = _models_by_name().get(name_or_path.strip().lower())
    if found is not None:
        return model_from_config(found.config, found.id, found.source)
    path = resolved_path(name_or_path, base)
    if _exists(path):
        return load_model_config(path)
    ids = [named.id for named in _models_by_name().values()]
    near = did_you_mean(name_or_path, [*ids, *(id_.rpartition("/")[2] for id_ in ids)])
    listed = unknown_name("model", name_or_path, model_names())[1]
    raise SpecError(f"unknown model {name_or_path[:_MAX_SHOWN]!r}: {near or listed}; see planner models")


# --------------------------------------------------------------------------------------------
# Traffic


@dataclass(frozen=True, kw_only=True, slots=True)
class TrafficPreset:
    """Statistics of a trace.

    Attributes
    ----------
    lengths : Lengths
        Prompt and output lengths. [tok]
    request_rate, peak_request_rate : float
        Mean over the trace, and of its busiest 60 s; where it is shorter than that, the mean. [req/s]
    interarrival_cv, arrival_scv : float
        Coefficient of variation of inter-arrival times, and its square; 1 is Poisson. [1]
    dispersion_10s, dispersion_60s : float or None
        Variance over mean of the arrivals in windows; 1 is Poisson. [1]
    ideal_prefix_hit_rate : float or None
        Share of prompt tokens that an infinite prefix cache would hit, where it is known. [1]
    requests : int
        Rows of the trace.
    duration : float
        Last minus first arrival. [s]
    """

    name: str
    description: str
    lengths: Lengths
    request_rate: float
    peak_request_rate: float
    interarrival_cv: float
    dispersion_10s: float | None
    dispersion_60s: float | None
    ideal_prefix_hit_rate: float | None
    requests: int
    duration: float
    citation: str
    source: str
    licence: str
    note: str

    @property
    def arrival_scv(self) -> float:
        return self.interarrival_cv**2


@cache
def traffic_names() -> tuple[str, ...]:
    """Names of the traffic presets, sorted."""
    return tuple(sorted(path.stem for path in (_FOLDER / "traffic").glob("*.yaml")))


def load_traffic(name_or_path: str | Path, base: str | Path | None = None) -> TrafficPreset:
    """A traffic preset by name, in any case, or by the path of a file of its form.

    Parameters
    ----------
    name_or_path : str or Path
        A path ends in .yaml or starts with a dot, a slash or a tilde.
    base : str or Path, optional
        Where relative paths start; the working directory when None.

    Raises
    ------
    SpecError
        Unknown name, or a file that breaks a rule.
    """
    if isinstance(name_or_path, Path) or _is_path(name_or_path, _YAML_SUFFIXES):
        path = resolved_path(name_or_path, base)
        return _preset(load_document(path, TrafficDocument).model, path)
    return _known_traffic(name_or_path.strip().lower())


@cache
def _known_traffic(name: str) -> TrafficPreset:
    if name not in traffic_names():
        raise _unknown("traffic preset", name, traffic_names())
    path = _FOLDER / "traffic" / f"{name}.yaml"
    return _preset(load_document(path, TrafficDocument).model, path)


def traffic_of(trace: Trace) -> TrafficPreset:
    """What a trace says of its traffic: the same as by way of a preset's file.

    Raises
    ------
    SpecError
        The trace has no rate, or no output.
    """
    statistics = measure(trace)
    text = preset_text(trace, statistics, described(trace, statistics))
    return _preset(parse_document(text, trace.source, TrafficDocument).model, trace.source)


def _preset(document: TrafficDocument, source: str | Path) -> TrafficPreset:
    try:
        lengths = Lengths(
            isl=_marginal(document.input_tokens),
            osl=_marginal(document.output_tokens),
            isl_per_output_token=document.isl_per_output_token,
            longest_request=document.longest_request_tokens,
        )
    except SpecError as error:
        raise file_error(source, str(error)) from None
    peak = document.peak_60s_request_rate
    return TrafficPreset(
        name=document.name,
        description=document.description,
        lengths=lengths,
        request_rate=document.request_rate,
        peak_request_rate=document.request_rate if peak is None else peak,
        interarrival_cv=document.interarrival_cv,
        dispersion_10s=document.dispersion_10s,
        dispersion_60s=document.dispersion_60s,
        ideal_prefix_hit_rate=document.ideal_prefix_hit_rate,
        requests=document.requests,
        duration=document.duration_s,
        citation=document.citation,
        source=document.source,
        licence=document.licence,
        note=document.note,
    )


def _marginal(table: QuantileTable) -> Marginal:
    return marginal_from_quantiles(table.probabilities, table.values)
