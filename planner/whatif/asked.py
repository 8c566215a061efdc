"""What a question is asked of: a scenario, or a plan with the scenario that it answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from planner.documents.files import file_error, read_text
from planner.documents.plan import plan_from_text
from planner.documents.scenario import LoadedScenario, loaded_of, scenario_from_text
from planner.documents.tree import Tree
from planner.documents.yaml_text import dump_yaml, parse_tree
from planner.errors import SpecError
from planner.plan import Plan
from planner.specs import Period, Scenario, Service


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Asked:
    """A scenario, and the plan that was given with it.

    Attributes
    ----------
    folder : Path or None
        Where relative paths of the scenario start.
    """

    loaded: LoadedScenario
    plan: Plan | None = None
    folder: Path | None = None
    name: str = "scenario"


Source = Asked | Plan | Scenario | LoadedScenario | str | Path


def asked_of(source: Source) -> Asked:
    """`source` with its scenario read; a path is that of a plan or of a scenario.

    Raises
    ------
    SpecError
        With every problem of the file, or if a plan does not hold its scenario.
    """
    return _at_peak(_read_asked(source))


def _read_asked(source: Source) -> Asked:
    if isinstance(source, Asked):
        return source
    if isinstance(source, Plan):
        return _of_plan(source, None, "plan")
    if isinstance(source, LoadedScenario):
        return Asked(loaded=source)
    if isinstance(source, Scenario):
        return Asked(loaded=loaded_of(source))
    text, tree = _read(Path(source))
    if _is_plan(tree):
        return _of_plan(plan_from_text(text, tree.source, folder=tree.folder), tree.folder, tree.source)
    if tree.has("groups"):
        raise file_error(tree.source, "is a fleet of groups, neither a scenario nor a plan")
    loaded = scenario_from_text(text, tree.source, folder=tree.folder)
    return Asked(loaded=loaded, folder=tree.folder, name=tree.source)


def text_of(source: Source) -> tuple[str, str, Path | None]:
    """The scenario of `source` as the text of a file, its name, and where its relative paths start.

    Raises
    ------
    SpecError
        If it is not known as a file, or no longer what its file says.
    """
    if isinstance(source, Asked):
        return dump_yaml(dict(source.loaded.document)), source.name, source.folder
    if isinstance(source, Plan):
        return _text_of_plan(source, "plan", None)
    if isinstance(source, LoadedScenario):
        name = source.scenario.source
        return dump_yaml(dict(source.document)), name, Path(name).resolve().parent
    if isinstance(source, Scenario):
        if not loaded_of(source).document:
            rule = "the scenario is not as a file says it, and keys are those of a file"
            raise SpecError(f"{rule} (give its path)")
        path = Path(source.source)
        return read_text(path), str(path), path.resolve().parent
    text, tree = _read(Path(source))
    folder = None if tree.folder is None else tree.folder.resolve()
    if _is_plan(tree):
        return _text_of_plan(plan_from_text(text, tree.source, folder=tree.folder), tree.source, folder)
    return text, tree.source, folder


def _text_of_plan(plan: Plan, name: str, folder: Path | None) -> tuple[str, str, Path | None]:
    if not plan.scenario:
        raise SpecError(f"{name}: the plan does not hold the scenario that it answers")
    return dump_yaml(dict(plan.scenario)), f"scenario of {name}", folder


def _at_peak(asked: Asked) -> Asked:
    """What is asked at the busiest rate of each service, where the scenario has a schedule of rates.

    A plan over periods is no answer to that.
    """
    scenario = asked.loaded.scenario
    if scenario.scaling is None:
        return asked
    services = tuple(_constant(service) for service in scenario.services)
    loaded = replace(asked.loaded, scenario=replace(scenario, services=services, scaling=None))
    return replace(asked, loaded=loaded, plan=None, name=f"{asked.name} at the busiest rates")


def _constant(service: Service) -> Service:
    workload = service.workload
    period = Period(name="constant", hours=1.0, request_rate=workload.request_rate)
    return replace(service, workload=replace(workload, periods=(period,)))


def read_plan(path: str | Path) -> Plan:
    """A plan file; ``-`` is standard input.

    Raises
    ------
    SpecError
        With every problem of the file; a scenario or a fleet file is told from a plan.
    """
    return _plan_text(Path(path))[0]


def read_asked_plan(path: str | Path) -> Asked:
    """A plan file with the scenario that it answers; raises as :func:`read_plan`."""
    plan, tree = _plan_text(Path(path))
    return _of_plan(plan, tree.folder, tree.source)


def _plan_text(path: Path) -> tuple[Plan, Tree]:
    text, tree = _read(path)
    if not _is_plan(tree):
        if tree.has("groups"):
            raise file_error(tree.source, "is a fleet of groups, not a plan")
        if tree.has("fleet"):
            raise file_error(tree.source, "is a scenario, not a plan", "planner solve -o makes a plan of it")
    return plan_from_text(text, tree.source, folder=tree.folder), tree


def _read(path: Path) -> tuple[str, Tree]:
    piped = str(path) == "-"
    text = read_text("/dev/stdin" if piped else path)
    name, folder = ("standard input", Path()) if piped else (str(path), path.parent)
    return text, parse_tree(text, name, folder)[0]


def _is_plan(tree: Tree) -> bool:
    return tree.has("schema_version") or tree.has("scenario")


def _of_plan(plan: Plan, folder: Path | None, name: str) -> Asked:
    if not plan.scenario:
        raise SpecError(f"{name}: the plan does not hold the scenario that it answers")
    text = dump_yaml(dict(plan.scenario))
    loaded = scenario_from_text(text, f"scenario of {name}", folder=folder)
    return Asked(loaded=loaded, plan=plan, folder=folder, name=name)
