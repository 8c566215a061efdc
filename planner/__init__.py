"""Capacity planning for disaggregated LLM serving.

``import planner`` stays cheap: numpy, the solver and pydantic are loaded when a name
below is first used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_API = {
    "load_scenario": "planner.documents.scenario",
    "load_plan": "planner.documents.plan",
    "load_fleet": "planner.documents.fleet",
    "load_model": "planner.catalog",
    "load_gpu": "planner.catalog",
    "load_engine": "planner.engines",
    "solve": "planner.workflow",
    "simulate": "planner.evaluation",
    "evaluate": "planner.evaluation",
    "predict": "planner.configuration",
    "explain": "planner.whatif.explain",
    "robustness": "planner.whatif.robustness",
    "pareto": "planner.whatif.pareto",
    "tiers": "planner.whatif.tiers",
    "networks": "planner.whatif.network",
    "compare": "planner.whatif.compare",
    "sensitivity": "planner.whatif.sensitivity",
    "roofline_of": "planner.operating_points",
    "Operating": "planner.operating_points",
    "sweep": "planner.whatif.sweep",
    "with_values": "planner.whatif.sweep",
    "calibrate_engine": "planner.validation.engine",
    "money_report": "planner.whatif.money_report",
    "SolveOptions": "planner.search",
    "SweepOptions": "planner.whatif.sweep",
    "Workers": "planner.whatif.workers",
    "Configuration": "planner.configuration",
    "Load": "planner.configuration",
    "Replicas": "planner.configuration",
    "Parallelism": "planner.specs",
    "Precision": "planner.specs",
    "PlannerError": "planner.errors",
    "SpecError": "planner.errors",
    "InfeasibleError": "planner.errors",
    "SolverError": "planner.errors",
    "VerificationError": "planner.errors",
}

__all__ = ["__version__", *_API]


def __getattr__(name: str) -> Any:
    if name in _API:
        return getattr(import_module(_API[name]), name)
    raise AttributeError(f"module 'planner' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
