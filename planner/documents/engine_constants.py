"""Files of fitted constants: what measured rows say of engines, and which rows those were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from planner.documents.files import read_lines
from planner.documents.schema_base import DocumentModel, Text
from planner.documents.source import load_document
from planner.documents.tree import KeyPath, Tree
from planner.documents.yaml_text import dump_yaml
from planner.errors import Problem
from planner.specs import ClassKey, Constants, FittedConstants
from planner.units import MICRO, MILLI

ROWS_SUFFIX = ".rows.txt"
"""Of the list of rows beside a file of constants."""


class TtftSection(DocumentModel):
    """What a benchmark's TTFT counts beside the prompt's own time."""

    fixed_ms: float = Field(ge=0, description="Client, HTTP, tokens to text.")
    services: float = Field(gt=0, description="Services of a prompt that a request sees.")
    steps: float = Field(gt=0, description="Steps around the one that takes the prompt.")
    first_wave: float = Field(gt=0, description="Wait per further client of a replica, in services.")


class ClassSection(DocumentModel):
    """Constants of one class; an empty key stands for all."""

    engine: str = Field(description="Name of the engine; empty for all.")
    version: str = Field(description="Version of the rows; empty for all.")
    benchmark: str = Field(description="Where the rows come from; empty for all.")
    rows: int = Field(gt=0, description="Rows that the class was fitted to.")
    step_ms: float = Field(ge=0, description="Host time of a step.")
    sequence_us: float = Field(ge=0, description="Host time of each sequence of a step.")
    decode_scale: float = Field(gt=0, description="Factor on kernels of decode steps.")
    prefill_scale: float = Field(gt=0, description="Factor on kernels of prompts.")
    ttft: TtftSection = Field(description="Of the benchmark.")


class FactorSection(DocumentModel):
    """Factor on all kernels of a model on an engine."""

    engine: Text = Field(description="Name of the engine.")
    model: Text = Field(description="A model of the shape.")
    shape: Text = Field(description="Width, layers and vocabulary: checkpoints of one shape run alike.")
    factor: float = Field(gt=0, description="On kernels.")


class EngineConstantsDocument(DocumentModel):
    """Fitted constants of engines."""

    source: Text = Field(description="Where the measured rows come from.")
    log_sd: float = Field(gt=0, description="Spread of steps beside that of kernels, natural log.")
    family_log_sd: float = Field(ge=0, description="The same between models, for one not measured.")
    ttft_log_sd: float = Field(gt=0, description="Spread of a benchmark's TTFT.")
    classes: tuple[ClassSection, ...] = Field(min_length=1, description="From all engines to one version.")
    models: tuple[FactorSection, ...] = Field(description="Models that were measured.")

    @classmethod
    def check(cls, tree: Tree) -> list[Problem]:
        """Classes are whole levels, and nothing stands twice."""
        problems = []
        seen: dict[tuple[str, ...], int] = {}
        for i, entry in enumerate(tree.entries("classes")):
            key = _texts(entry, "engine", "version", "benchmark")
            path = ("classes", i, "engine")
            if key is not None and tuple(map(bool, key)) not in _LEVELS:
                rule = "needs a version and a benchmark beside the engine, or neither, or nothing at all"
                problems.append(tree.problem(path, rule, show_value=False))
            elif key is not None:
                problems += _repeated(tree, path, key, seen)
        for i, entry in enumerate(tree.entries("models")):
            family = _texts(entry, "engine", "shape")
            if family is not None:
                problems += _repeated(tree, ("models", i, "shape"), family, seen)
        return problems


_LEVELS = ((False, False, False), (True, False, False), (True, True, True))
"""What of engine, version and benchmark the key of a class may have."""


def _texts(entry: object, *names: str) -> tuple[str, ...] | None:
    """Values of a mapping; None where the schema says what is wrong with it."""
    values = [entry.get(name) for name in names] if isinstance(entry, dict) else [None]
    texts = tuple(value for value in values if isinstance(value, str))
    return texts if len(texts) == len(names) else None


def _repeated(
    tree: Tree, path: KeyPath, key: tuple[str, ...], seen: dict[tuple[str, ...], int]
) -> list[Problem]:
    line = tree.line(path)
    first = seen.setdefault((str(path[0]), *key), line)
    if first == line:
        return []
    return [tree.problem(path, f"must be unique: line {first} has the same", show_value=False)]


def load_engine_constants(path: str | Path) -> FittedConstants:
    """Read a file of constants and, where there is one, the list of rows beside it.

    Raises
    ------
    SpecError
        With every problem of the file.
    """
    path = Path(path)
    document = load_document(path, EngineConstantsDocument).model
    rows = path.with_suffix(ROWS_SUFFIX)
    listed = (line.strip() for line in read_lines(rows)) if rows.exists() else iter(())
    return FittedConstants(
        classes={_key(section): _constants(section) for section in document.classes},
        factors={(m.engine, m.shape): m.factor for m in document.models},
        names={m.shape: m.model for m in document.models},
        counts={_key(section): section.rows for section in document.classes},
        log_sd=document.log_sd,
        family_log_sd=document.family_log_sd,
        ttft_log_sd=document.ttft_log_sd,
        rows=frozenset(line for line in listed if line and not line.startswith("#")),
        source=document.source,
    )


def _key(section: ClassSection) -> ClassKey:
    return tuple(part for part in (section.engine, section.version, section.benchmark) if part)


def _constants(section: ClassSection) -> Constants:
    return Constants(
        step=section.step_ms * MILLI,
        sequence=section.sequence_us * MICRO,
        decode_scale=section.decode_scale,
        prefill_scale=section.prefill_scale,
        fixed=section.ttft.fixed_ms * MILLI,
        services=section.ttft.services,
        steps=section.ttft.steps,
        first_wave=section.ttft.first_wave,
    )


def constants_text(fitted: FittedConstants, head: str) -> str:
    """A file of constants, to four digits; `head` is the comment it starts with."""
    document = {
        "source": fitted.source,
        "log_sd": fitted.log_sd,
        "family_log_sd": fitted.family_log_sd,
        "ttft_log_sd": fitted.ttft_log_sd,
        "classes": [
            _class_section(key, fitted.counts[key], constants)
            for key, constants in sorted(fitted.classes.items(), key=lambda item: (len(item[0]), item[0]))
        ],
        "models": [
            {
                "engine": engine,
                "model": fitted.names.get(shape, shape),
                "shape": shape,
                "factor": short(factor),
            }
            for (engine, shape), factor in sorted(fitted.factors.items())
        ],
    }
    return "".join(f"# {line}\n" for line in head.splitlines()) + dump_yaml(document)


def _class_section(key: ClassKey, rows: int, c: Constants) -> dict[str, Any]:
    engine, version, benchmark = (*key, "", "", "")[:3]
    return {
        "engine": engine,
        "version": version,
        "benchmark": benchmark,
        "rows": rows,
        "step_ms": short(c.step / MILLI),
        "sequence_us": short(c.sequence / MICRO),
        "decode_scale": short(c.decode_scale),
        "prefill_scale": short(c.prefill_scale),
        "ttft": {
            "fixed_ms": short(c.fixed / MILLI),
            "services": short(c.services),
            "steps": short(c.steps),
            "first_wave": short(c.first_wave),
        },
    }


def short(value: float) -> float:
    """To four digits."""
    return float(f"{value:.4g}")
