"""JSON Schemas of the files, for editors that complete and check them. Made from the pydantic models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.documents.engine import EngineDocument
from planner.documents.engine_profile import EngineProfileDocument
from planner.documents.fleet_schema import FleetDocument
from planner.documents.gpu_profile import GpuProfileDocument
from planner.documents.plan_schema import PlanDocument
from planner.documents.scenario_schema import ScenarioDocument
from planner.documents.schema_base import DocumentModel
from planner.documents.site_schema import SiteDocument

FOLDER = Path(__file__).parent / "schemas"

_MODELS: dict[str, type[DocumentModel]] = {
    "scenario": ScenarioDocument,
    "gpu-profile": GpuProfileDocument,
    "plan": PlanDocument,
    "engine": EngineDocument,
    "fleet": FleetDocument,
    "site": SiteDocument,
    "engine-profile": EngineProfileDocument,
}


def schema_names() -> tuple[str, ...]:
    """Kinds of files that have a schema."""
    return tuple(_MODELS)


def json_schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema (draft 2020-12) of every kind of file, by its name."""
    return {name: _schema(name, model) for name, model in _MODELS.items()}


def schema_text(name: str) -> str:
    """One of the schemas as the text of its file ``schemas/<name>.json``."""
    return json.dumps(_schema(name, _MODELS[name]), indent=2, ensure_ascii=False) + "\n"


def write_schemas(folder: Path = FOLDER) -> None:
    """Bring the files of the schemas up to date."""
    for name in _MODELS:
        (folder / f"{name}.json").write_text(schema_text(name), encoding="utf-8")


def _schema(name: str, model: type[DocumentModel]) -> dict[str, Any]:
    schema = _tidied(model.model_json_schema(), nulls=model.empty_values)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": f"planner {name}",
    }


def _tidied(part: Any, nulls: bool) -> Any:
    """Without titles that repeat the key; without null where a key may not be left without value."""
    if isinstance(part, list):
        return [_tidied(item, nulls) for item in part]
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if not (key == "title" and isinstance(value, str))}
    if "default" in kept and kept["default"] is None:
        del kept["default"]
    if not nulls and "anyOf" in kept:
        choices = [choice for choice in kept["anyOf"] if choice != {"type": "null"}]
        del kept["anyOf"]
        kept = {**choices[0], **kept} if len(choices) == 1 else {"anyOf": choices, **kept}
    return {key: _tidied(value, nulls) for key, value in kept.items()}
