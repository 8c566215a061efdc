"""The architecture as rules: layers, who may import what, and where powers of ten stand.

Imports are read with ast, so an import within a function counts like one at the top.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS: tuple[tuple[str, ...], ...] = (
    ("units", "errors", "arrays", "requirements", "results"),
    ("specs",),
    (
        "plan", "lengths", "money", "traces", "samples", "device_facts", "checked_steps",
        "queueing", "roofline", "collectives", "transformer",
        "documents.files", "documents.messages", "documents.names", "documents.schema_base",
        "documents.source", "documents.sourced", "documents.tree", "documents.yaml_text",
        "documents.trace_columns", "documents.trace_times", "documents.published_file",
        "documents.measured_file", "documents.measurement_table", "documents.peer_file",
        "documents.load_tests", "documents.operator_tables",
    ),
    ("memory", "traffic", "cases", "experts", "latent", "program", "fleet", "reuse"),
    ("operators", "buckets", "rooflines", "reference_operators"),
    ("latency",),
    (
        "capacity", "closed_loop", "operating_points",
        "documents.engine", "documents.engine_constants", "documents.engine_profile",
        "documents.gpu_profile", "documents.model_config",
        "documents.catalogue",
        "documents.trace_file", "documents.trace_values", "documents.traffic_preset",
    ),
    ("engines", "catalog", "prediction", "simulator"),
    ("configuration",),
    ("anchoring", "calibration", "documents.samples_file"),
    ("profiling",),
    (
        "candidates", "physics",
        "documents.look_ups", "documents.profile_override",
        "documents.scenario_schema", "documents.scenario_rules", "documents.scenario",
        "documents.schedule_schema", "documents.schedule",
        "documents.supply_schema", "documents.supply_rules", "documents.supply",
        "documents.site_schema", "documents.site",
        "documents.plan_schema", "documents.plan_extras", "documents.plan", "documents.fleet_schema",
    ),
    (
        "lines", "infeasibility", "question", "validation",
        "documents.schemas", "documents.shared_node", "documents.fleet", "documents.stock",
        "documents.scenario_draft",
    ),
    ("assembly", "formulation", "moves", "supply"),
    ("search", "verification", "routers"),
    ("standing",),
    ("learning", "same_node", "side_by_side"),
    ("schedule", "length_split"),
    ("workflow", "evaluation"),
    ("whatif", "doctor"),
    ("deploy",),
    ("report",),
    ("cli",),
    ("__main__",),
)  # fmt: skip
"""Rows from the bottom up; a name stands for a module and all below it.

Imports point to lower rows; within a folder they may stay in the row, but not form a circle.
"""

LATE_IMPORTS = {
    ("planner.cli.profile", "planner.profiling.check"): "torch, only where a device is measured",
    ("planner.cli.profile", "planner.profiling.device"): "torch, only where a device is measured",
    ("planner.cli.profile", "planner.profiling.session"): "torch, only where a device is measured",
    ("planner.cli.calibrate_ops", "planner.report.calibration"): "rich, only where tables are printed",
    ("planner.cli.profile", "planner.report.calibration"): "rich, only where tables are printed",
    ("planner.profiling.kernels", "flash_attn"): "installed with some engines only",
    ("planner.profiling.kernels", "flashinfer"): "installed with some engines only",
    ("planner.cli.lazy", "difflib"): "only a mistyped command pays for it",
    (
        "planner.cli.calibrate_engine",
        "planner.report.engine_calibration",
    ): "rich, only where tables are printed",
    ("planner.cli.compare", "planner.report.compare_plot"): "matplotlib, only for pictures",
    ("planner.cli.explain", "planner.report.explain_plot"): "matplotlib, only for pictures",
    ("planner.cli.lazy", "click.shell_completion"): "only a shell that completes pays for it",
    ("planner.cli.completions", "planner.catalog"): "only a shell that completes pays for it",
    ("planner.cli.completions", "planner.deploy.targets"): "only a shell that completes pays for it",
    ("planner.cli.completions", "planner.engines"): "only a shell that completes pays for it",
    ("planner.cli.compare", "planner.report.compare"): "rich, only where tables are printed",
    ("planner.cli.explain", "planner.report.whatif"): "rich, only where tables are printed",
    ("planner.cli.look_up", "planner.report.terminal"): "rich, only where tables are printed",
    ("planner.cli.gpu_comparison", "planner.report.gpus"): "rich, only where tables are printed",
    ("planner.cli.roofline", "planner.report.gpus"): "rich, only where tables are printed",
    ("planner.cli.roofline", "planner.report.roofline_plot"): "matplotlib, only for pictures",
    ("planner.cli.report", "planner.report.html.gather"): "numba: help does without",
    ("planner.cli.report", "planner.report.html.page"): "only where a page is written",
    ("planner.report.html.page", "plotly.offline"): "in the extra [report] only",
    ("planner.cli.judge", "planner.report.judgement"): "rich, only where tables are printed",
    ("planner.cli.memory", "planner.report.terminal"): "rich, only where tables are printed",
    ("planner.cli.output", "shutil"): "only a terminal is asked for its size",
    ("planner.cli.money", "planner.report.money"): "rich, only where tables are printed",
    ("planner.cli.network", "planner.report.network"): "rich, only where tables are printed",
    ("planner.cli.network", "planner.report.network_plot"): "matplotlib, only for pictures",
    ("planner.cli.tiers", "planner.report.tiers"): "rich, only where tables are printed",
    ("planner.cli.output", "rich.console"): "rich, only where there is a terminal to show progress on",
    ("planner.cli.output", "rich.progress"): "rich, only where there is a terminal to show progress on",
    ("planner.cli.pareto", "planner.report.pareto_plot"): "matplotlib, only for pictures",
    ("planner.cli.pareto", "planner.report.whatif"): "rich, only where tables are printed",
    ("planner.cli.predict", "planner.report.terminal"): "rich, only where tables are printed",
    ("planner.cli.sweep", "planner.report.sweep"): "rich, only where tables are printed",
    ("planner.whatif.journal", "fcntl"): "not on every system",
    ("planner.whatif.workers", "joblib"): "loads its helpers, which a single process does without",
    ("planner.whatif.workers", "joblib.externals.loky.process_executor"): "as joblib",
    ("planner.whatif.workers", "distributed"): "slow to load, and in the extra [dask] only",
    ("planner.cli.robustness", "planner.report.whatif"): "rich, only where tables are printed",
    ("planner.cli.simulate", "planner.report.simulation"): "rich, only where tables are printed",
    ("planner.cli.simulate", "planner.report.simulation_plot"): "matplotlib, only for pictures",
    ("planner.cli.simulate", "planner.report.timeline_plot"): "matplotlib, only for pictures",
    ("planner.cli.simulate", "planner.simulator.interference"): "only for pictures",
    ("planner.learning", "planner.verification"): "numba, only where plans are simulated",
    ("planner.schedule", "planner.verification"): "numba, only where plans are simulated",
    ("planner.workflow", "planner.verification"): "numba, only where plans are simulated",
    ("planner.cli.solve", "planner.report.terminal"): "rich, only where tables are printed",
    ("planner.cli.validate", "planner.report.validation"): "rich, only where tables are printed",
    ("planner.validation.evaluate", "planner.validation.fitting"): "scipy, only where constants are fitted",
    ("planner.cli.timeline", "planner.report.timeline_plot"): "rich, and matplotlib: only for pictures",
    ("planner.cli.timeline", "planner.report.timeline_text"): "rich, only where text is printed",
    ("planner.cli.timeline", "planner.standing"): "numba: help does without",
    ("planner.cli.timeline", "planner.side_by_side"): "numba: help does without",
    ("planner.cli.timeline", "planner.simulator.interference"): "numba: help does without",
    ("planner.cli.workload", "planner.report.workload"): "rich, only where tables are printed",
    ("planner.documents.operator_tables", "pyarrow"): "slow to load, and in the extra [tables] only",
    ("planner.report.figures", "matplotlib"): "slow to load, and in the extra [report] only",
    ("planner.whatif.frames", "pandas"): "slow to load, and in the extra [notebook] only",
    ("planner.report.roofline_plot", "matplotlib.lines"): "slow to load, and in the extra [report] only",
    ("planner.report.timeline_plot", "matplotlib"): "slow to load, and in the extra [report] only",
}
"""Imports within functions, with the reason."""

ONLY_IN = {
    "pulp": ("planner.program.backends",),
    "highspy": ("planner.program.backends", "planner.program.horizon.lp"),  # duals, and growing programs
    "click": ("planner.cli",),
    "rich": ("planner.cli.output", "planner.report"),
    "yaml": ("planner.documents.yaml_text", "planner.catalog"),
    "pydantic": ("planner.documents",),
    "matplotlib": ("planner.report",),
    "plotly": ("planner.report.html",),
    "numba": ("planner.simulator.compiled",),
    "pandas": ("planner.whatif.frames", "planner.results", "planner.report.rows"),
    "joblib": ("planner.whatif.workers",),
    "distributed": ("planner.whatif.workers",),
    "pyarrow": ("planner.documents.operator_tables",),
    "scipy": ("planner.validation.fitting", "planner.calibration.fitting"),
    "torch": ("planner.profiling",),
}
"""Libraries that belong to one place."""

HEAVY = ("torch", "plotly")
"""Libraries that are loaded only for what needs them."""

UNIT_LITERALS = {
    "planner/calibration/table_rows.py": {"1024"},  # the narrowest weights of a table that count
    "planner/candidates/curves.py": {"2**20"},  # replicas of a group, at most
    "planner/cases.py": {"1024"},  # tokens and widths of shapes
    "planner/profiling/check.py": {"1024"},  # tokens
    "planner/infeasibility.py": {"1000.0"},  # how much faster a network is tried
    "planner/queueing/waiting.py": {"1e6"},  # a decay rate without unit that stands for infinity
    "planner/documents/scenario_schema.py": {"1e15", "1024"},  # the largest numbers that are accepted
    "planner/documents/measured_file.py": {"1e12"},  # the largest number of a cell
    "planner/documents/schedule_schema.py": {"1e9"},  # the largest rate that is accepted
    "planner/lengths.py": {"1000"},  # probabilities in steps of a thousandth
    "planner/program/infeasible.py": {"10**6"},  # an upper bound of slacks
}
"""Powers of ten and two outside units.py that are no unit."""


@dataclass(frozen=True)
class Import:
    module: str  # who imports
    name: str  # what
    late: bool  # within a function
    line: int


@cache
def sources() -> dict[str, Path]:
    """Path of each module of the package by its dotted name."""
    found = {}
    for path in sorted((ROOT / "planner").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> tuple[Import, ...]:
    return tuple(found for module in sources() for found in _imports_of(module))


def _imports_of(module: str) -> Iterator[Import]:
    def walk(node: ast.AST, late: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inside = late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module, alias.name, late, child.lineno)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{module}:{child.lineno}: relative import"
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    yield Import(module, full if full in sources() else str(child.module), late, child.lineno)
            yield from walk(child, inside)

    yield from walk(ast.parse(sources()[module].read_text(encoding="utf-8")), late=False)


def _under(name: str, root: str) -> bool:
    return name == root or name.startswith(f"{root}.")


def layer_entry(module: str) -> tuple[int, str] | None:
    """Row of a module and the name that it goes by there; the longest name that fits."""
    names = [(len(name), row, name) for row, layer in enumerate(LAYERS) for name in layer]
    fitting = [(length, row, name) for length, row, name in names if _under(module, f"planner.{name}")]
    if not fitting:
        return None
    _, row, name = max(fitting)
    return row, name


PACKAGES_WITHOUT_CODE = {"planner", "planner.documents"}  # a version and lazy names; a docstring


def test_every_module_belongs_to_a_layer() -> None:
    missing = [m for m in sources() if layer_entry(m) is None and m not in PACKAGES_WITHOUT_CODE]
    assert missing == []


def test_every_layer_name_is_in_use() -> None:
    used = {entry[1] for m in sources() if (entry := layer_entry(m))}
    assert {name for layer in LAYERS for name in layer} == used


def test_imports_point_down() -> None:
    wrong = []
    for found in imports():
        if not found.name.startswith("planner.") or found.module in PACKAGES_WITHOUT_CODE:
            continue
        mine, theirs = layer_entry(found.module), layer_entry(found.name)
        assert mine is not None
        assert theirs is not None, f"{found.module}:{found.line} imports {found.name}, which has no layer"
        same_folder = mine[1].split(".")[0] == theirs[1].split(".")[0]
        if theirs[0] > mine[0] or (theirs[0] == mine[0] and not same_folder):
            wrong.append(f"{found.module}:{found.line} imports {found.name}")
    assert wrong == []


def test_modules_of_a_folder_import_one_another_in_one_direction() -> None:
    edges: dict[str, set[str]] = {}
    for found in imports():
        if _under(found.name, "planner") and found.name != "planner" and found.name != found.module:
            edges.setdefault(found.module, set()).add(found.name)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in sorted(edges.get(module, ())):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(edges):
        visit(module, ())


def test_late_imports_are_those_with_a_reason() -> None:
    assert {(f.module, f.name) for f in imports() if f.late} == set(LATE_IMPORTS)


@pytest.mark.parametrize("library", ONLY_IN)
def test_library_is_imported_in_its_place_only(library: str) -> None:
    allowed = ONLY_IN[library]
    users = {f.module for f in imports() if _under(f.name, library)}
    assert users, f"{library} is not in use"
    assert [m for m in sorted(users) if not any(_under(m, place) for place in allowed)] == []


def test_program_knows_nothing_of_latency() -> None:
    allowed = {"planner.program", "planner.errors", "planner.plan", "planner.specs", "planner.units"}
    names = {f.name for f in imports() if _under(f.module, "planner.program") and _under(f.name, "planner")}
    assert {n for n in names if not any(_under(n, a) for a in allowed)} == set()


# --------------------------------------------------------------------------------------------
# What is loaded


def loaded_by(code: str) -> set[str]:
    """Top-level names of the modules in a fresh interpreter after `code`."""
    script = f"{code}\nimport sys\nprint('\\n'.join(sorted({{m.split('.')[0] for m in sys.modules}})))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return set(result.stdout.split())


LIGHT = {"numpy", "numba", "pandas", "scipy", "matplotlib", "pydantic", "yaml", "pulp", "rich", *HEAVY}


def test_import_planner_is_light() -> None:
    assert loaded_by("import planner") & LIGHT == set()


def test_help_is_light() -> None:
    code = (
        "import contextlib, io\nfrom planner.cli import main\nimport sys\nsys.argv = ['planner', '--help']\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    main()"
    )
    assert loaded_by(code) & LIGHT == set()


def test_help_of_solve_loads_no_simulator() -> None:
    code = (
        "import contextlib, io\nfrom planner.cli import main\nimport sys\n"
        "sys.argv = ['planner', 'solve', '--help']\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    main()"
    )
    assert loaded_by(code) & {"numba", "matplotlib", "pandas", "scipy", *HEAVY} == set()


def test_solve_loads_no_heavy_library() -> None:
    code = (
        "import planner\nplanner.solve, planner.load_plan\nimport planner.report.terminal, planner.cli.solve"
    )
    loaded = loaded_by(code)
    assert "pulp" in loaded
    assert loaded & {"numba", "matplotlib", "pandas", "scipy", *HEAVY} == set()


# --------------------------------------------------------------------------------------------
# Units


def unit_literals(text: str) -> Iterator[str]:
    """Powers of a thousand and of 1,024, as written; whole numbers only where they are that power."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            value = node.value
            if value in (1e3, 1e6, 1e9, 1e12, 1e15, 2**10, 2**20, 2**30, 2**40):
                yield str(ast.get_source_segment(text, node))
        elif (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Pow)
            and isinstance(node.left, ast.Constant)
            and isinstance(node.right, ast.Constant)
        ):
            base, exponent = node.left.value, node.right.value
            if (base, exponent) in {(2, 10), (2, 20), (2, 30), (2, 40)} or base in (10, 1000, 1024):
                yield str(ast.get_source_segment(text, node))


@pytest.mark.parametrize("text", ["x * 1e9", "x / 1_000_000", "2**30", "10**9", "1024**3", "x * 1000.0"])
def test_unit_literals_are_seen(text: str) -> None:
    assert list(unit_literals(text))


@pytest.mark.parametrize("text", ["2**k", "1e-6", "4096", "x**2", "1e300", "True"])
def test_other_numbers_are_no_unit_literals(text: str) -> None:
    assert not list(unit_literals(text))


def test_powers_of_ten_and_two_stand_in_units_only() -> None:
    found: dict[str, set[str]] = {}
    for path in sources().values():
        name = path.relative_to(ROOT).as_posix()
        if name != "planner/units.py" and (literals := set(unit_literals(path.read_text(encoding="utf-8")))):
            found[name] = literals
    assert found == UNIT_LITERALS
