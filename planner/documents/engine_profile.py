"""Engine profiles: what ``planner calibrate engine`` writes, and what takes the place of an engine's own.

A profile names its engine and holds no more than what measurements say of it: defaults, memory reserves and
transfers stay those of the engine's own file.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from planner.documents.engine_constants import TtftSection, short
from planner.documents.schema_base import DocumentModel, NonNegative, Positive, PositiveInt, Text
from planner.documents.source import load_document
from planner.documents.yaml_text import dump_yaml
from planner.specs import Constants, EngineProfile
from planner.units import MICRO, MILLI


class ProfileOverheads(DocumentModel):
    """Time that is not in the kernels' own."""

    step_ms: NonNegative = Field(description="Host time of a step. [ms]")
    sequence_us: NonNegative = Field(description="Host time of each sequence of a step. [us]")
    decode_scale: Positive = Field(description="Factor on kernels of decode steps.")
    prefill_scale: Positive = Field(description="Factor on kernels of prompts.")


class ProfileModel(DocumentModel):
    """A model that was measured."""

    model: Text = Field(description="A model of the shape.")
    shape: Text = Field(description="Width, layers and vocabulary: checkpoints of one shape run alike.")
    factor: Positive = Field(description="On all its kernels.")


class HeldOut(DocumentModel):
    """Errors of one latency over rows that had no share in what predicts them. [1]"""

    rows: PositiveInt = Field(description="Rows with this latency.")
    before_median: NonNegative = Field(description="Median error with the constants before.")
    before_p90: NonNegative = Field(description="Its 90th percentile.")
    median: NonNegative = Field(description="Median error as calibrated.")
    p90: NonNegative = Field(description="Its 90th percentile.")


class ResultsFile(DocumentModel):
    """A file of measurements."""

    file: Text = Field(description="Its name.")
    rows: int = Field(ge=0, description="Rows of it that count.")
    skipped: dict[str, int] = Field(default={}, description="Rows that do not, by reason.")


class CalibrationSection(DocumentModel):
    """Where a profile comes from."""

    date: Text = Field(description="When it was made.")
    planner_version: Text = Field(description="What made it.")
    started_from: Text = Field(description="Constants that were moved.")
    moved: Text = Field(description="What the rows moved: nothing, factors of models, or all constants.")
    results: tuple[ResultsFile, ...] = Field(description="Files that were read.")
    rows: PositiveInt = Field(description="Rows that count.")
    ids: tuple[str, ...] = Field(description="Their names or ids.")
    loads: PositiveInt = Field(description="Different configurations and loads among them.")
    gpus: tuple[Text, ...] = Field(description="GPUs that they were measured on.")
    parts: int = Field(ge=0, description="Parts in which rows were held out; 0: too few loads.")
    held_out: dict[str, HeldOut] = Field(description="Errors by latency, tpot and ttft.")
    not_identified: tuple[str, ...] = Field(description="Constants that the rows say little of.")
    notes: tuple[str, ...] = Field(description="What else there is to know.")


class EngineProfileDocument(DocumentModel):
    """An engine as measurements have calibrated it."""

    engine: Text = Field(description="Name of the engine.")
    version: Text = Field(description="Version that was measured.")
    overheads: ProfileOverheads = Field(description="Time that is not in the kernels' own.")
    ttft: TtftSection = Field(description="What the benchmark's TTFT counts; plans do not use it.")
    models: tuple[ProfileModel, ...] = Field(description="Models that were measured.")
    log_sd: Positive = Field(description="Spread of steps to plan with, natural log.")
    ttft_log_sd: Positive = Field(description="Spread of a benchmark's TTFT, natural log.")
    calibration: CalibrationSection = Field(description="Where all of this comes from.")


def load_engine_profile(path: str | Path) -> EngineProfile:
    """Read an engine profile.

    Raises
    ------
    SpecError
        With every problem of the file.
    """
    return profile_of(load_document(path, EngineProfileDocument).model, Path(path).name)


def profile_of(document: EngineProfileDocument, name: str) -> EngineProfile:
    """The profile in SI units; `name` is that of its file."""
    over, ttft = document.overheads, document.ttft
    return EngineProfile(
        engine=document.engine.lower(),
        version=document.version,
        constants=Constants(
            step=over.step_ms * MILLI,
            sequence=over.sequence_us * MICRO,
            decode_scale=over.decode_scale,
            prefill_scale=over.prefill_scale,
            fixed=ttft.fixed_ms * MILLI,
            services=ttft.services,
            steps=ttft.steps,
            first_wave=ttft.first_wave,
        ),
        factors=tuple((m.shape, m.factor) for m in document.models),
        log_sd=document.log_sd,
        ttft_log_sd=document.ttft_log_sd,
        gpus=document.calibration.gpus,
        provenance=_provenance(document, name),
    )


def _provenance(document: EngineProfileDocument, name: str) -> str:
    made = document.calibration
    models = ", ".join(m.model for m in document.models)
    files = ", ".join(result.file for result in made.results)
    parts = [
        f"{name}: calibrated on {made.date[:10]} with {made.rows:,} measured rows of {document.version} on "
        f"{', '.join(made.gpus)}, {models} ({files}); moved: {made.moved}"
    ]
    for latency, errors in made.held_out.items():
        before = f"{errors.before_median:.1%} before"
        parts.append(f"held-out {latency.upper()} off by {errors.median:.1%} at the median, {before}")
    if made.not_identified:
        parts.append(f"not identified: {', '.join(made.not_identified)}")
    return "; ".join([*parts, f"spread {document.log_sd:.3g}"])


def profile_text(document: EngineProfileDocument) -> str:
    """A profile as YAML."""
    head = (
        "An engine as measurements have calibrated it: planner solve --engine-profile, or engine_profile: "
        "in a scenario."
    )
    return f"# {head}\n" + dump_yaml(document.model_dump(mode="json"))


def sections_of(constants: Constants) -> tuple[ProfileOverheads, TtftSection]:
    """Constants in the units of a file, to four digits."""
    return (
        ProfileOverheads(
            step_ms=short(constants.step / MILLI),
            sequence_us=short(constants.sequence / MICRO),
            decode_scale=short(constants.decode_scale),
            prefill_scale=short(constants.prefill_scale),
        ),
        TtftSection(
            fixed_ms=short(constants.fixed / MILLI),
            services=short(constants.services),
            steps=short(constants.steps),
            first_wave=short(constants.first_wave),
        ),
    )
