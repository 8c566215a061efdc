"""What an installation has and lacks: every check can fail, and says what would help."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from conftest import Runner
from test_architecture import loaded_by

from planner import doctor
from planner.doctor import Check, Health, examine
from planner.requirements import DEVELOPMENT, older, required

ROOT = Path(__file__).parents[1]


def found(name: str, **options: bool) -> Check:
    (check,) = [c for c in examine(**options) if c.name == name]
    return check


NEEDED = {
    "numpy", "scipy", "pulp", "highspy", "pyyaml", "click", "pydantic", "rich", "numba",
}  # fmt: skip


def test_libraries_are_those_of_the_project_file():
    found = required()
    assert set(found[""]) >= NEEDED
    assert found[""]["numpy"] == "2.0"
    assert found[""]["highspy"] == "1.12"  # of >=1.12,!=1.16.0
    assert found["profile"] == {"torch": "2.6"}
    assert set(found["report"]) == {"matplotlib", "plotly"}
    assert "pd-planner" not in found["notebook"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(found) == {"", *project["optional-dependencies"]} - set(DEVELOPMENT)


def test_libraries_of_an_installed_package_are_those_of_its_metadata(monkeypatch, tmp_path: Path):
    lines = ["numpy>=2.0", "pulp<4,>=3.3", "click"]
    lines += ['torch>=2.6; extra == "profile"', "pytest>=8; extra == 'test'"]
    monkeypatch.setattr(metadata, "requires", lambda _name: lines)
    nowhere = tmp_path / "pyproject.toml"
    assert required(nowhere) == {
        "": {"numpy": "2.0", "pulp": "3.3", "click": ""},
        "profile": {"torch": "2.6"},
    }
    monkeypatch.setattr(metadata, "requires", lambda name: metadata.distribution(f"no-{name}"))
    assert required(nowhere) == {"": {}}


def test_this_installation_is_healthy(planner: Runner):
    result = planner("doctor", "--json")
    facts = result.facts
    assert (result.code, facts["healthy"]) == (0, True)
    checks = {c["name"]: c for c in facts["checks"]}
    assert set(checks) | {""} >= {
        *NEEDED,
        *required(),
        "highs",
        "cbc",
        "catalogue",
        "simulator",
        "kubectl",
        "processors",
    }
    for name in ("numpy", "highs", "cbc", "catalogue"):
        assert checks[name]["status"] == "ok", checks[name]
    assert checks["numpy"]["detail"] == metadata.version("numpy")
    assert checks["highs"]["detail"] == "solves a tiny program"
    assert "GPUs" in checks["catalogue"]["detail"]


def test_the_table_says_so_in_a_line_for_each(planner: Runner):
    result = planner("doctor")
    assert result.code == 0
    assert result.out.endswith("\nplanner solve can run\n")
    assert any(line.split()[:2] == ["ok", "numpy"] for line in result.out.splitlines())


def without(monkeypatch: pytest.MonkeyPatch, name: str, version: str | None = None) -> None:
    """As if a library were not installed, or in another version."""
    real = metadata.version

    def version_of(asked: str) -> str:
        if asked != name:
            return real(asked)
        if version is None:
            raise metadata.PackageNotFoundError(asked)
        return version

    monkeypatch.setattr(metadata, "version", version_of)


def test_a_missing_library_ends_with_1(planner: Runner, monkeypatch):
    without(monkeypatch, "rich")
    result = planner("doctor")
    assert result.code == 1
    assert "BROKEN   rich" in result.out
    assert "is not installed  (pip install 'rich>=13.9')" in result.out
    assert result.out.endswith("planner solve cannot run: rich\n")


def test_an_old_library_is_told_from_a_new_one(monkeypatch):
    without(monkeypatch, "numpy", "1.26.4")
    check = found("numpy")
    assert (check.health, check.detail) == (Health.BROKEN, "1.26.4, needs 2.0")
    without(monkeypatch, "numpy", "2.0.0rc1")
    assert found("numpy").health is Health.OK


@pytest.mark.parametrize(
    ("version", "least", "is_older"),
    [
        ("1.9", "1.10", True),
        ("1.10", "1.9", False),
        ("2.0", "2.0", False),
        ("3", "3.3", True),
        ("", "1", True),
    ],
)
def test_versions_compare_as_numbers(version: str, least: str, is_older: bool):
    assert older(version, least) is is_older


def test_a_missing_extra_is_no_failure(planner: Runner, monkeypatch):
    without(monkeypatch, "matplotlib")
    result = planner("doctor")
    assert result.code == 0
    assert "matplotlib not installed, plotly" in result.out
    assert "(pip install 'pd-planner[report]')" in result.out


def wrong(*_arguments: object, solver: str, **_options: object) -> None:
    raise OSError(f"{solver} is no program\nand more")


def test_a_solver_that_does_not_answer_ends_with_4(planner: Runner, monkeypatch):
    monkeypatch.setattr("planner.program.backends.solve_lp", wrong)
    result = planner("doctor", "--json")
    assert result.code == 4
    checks = {c["name"]: c for c in result.facts["checks"]}
    assert checks["highs"]["status"] == "broken"
    assert checks["highs"]["detail"] == "OSError: highs is no program"
    assert checks["highs"]["remedy"] == "pip install --force-reinstall highspy"
    assert checks["cbc"]["status"] == "missing"


def test_a_wrong_answer_of_a_solver_is_seen(monkeypatch):
    from planner.program import backends

    right = backends.solve_lp
    monkeypatch.setattr(backends, "_HIGHS_OPTIONS", backends._HIGHS_OPTIONS)

    def other(lp, **options):
        return right(lp.with_row(backends.Row(name="no", terms=((1, 1.0),), lower=0.0, upper=0.0)), **options)

    monkeypatch.setattr(backends, "solve_lp", other)
    assert "not (0, 2)" in found("highs").detail


def test_a_broken_catalogue_ends_with_1(planner: Runner, monkeypatch):
    def broken(_name: str) -> None:
        raise FileNotFoundError("h100-sxm.yaml")

    monkeypatch.setattr("planner.catalog.load_gpu", broken)
    result = planner("doctor")
    assert result.code == 1
    assert "FileNotFoundError: h100-sxm.yaml" in result.out


def test_a_cache_that_cannot_be_written_is_said(monkeypatch):
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    check = found("simulator")
    assert check.health is Health.MISSING
    assert "cannot be written: every process compiles the simulator anew" in check.detail
    assert "NUMBA_CACHE_DIR" in check.remedy


def test_the_cache_may_have_no_folder_yet(tmp_path: Path):
    assert doctor._writable(tmp_path / "not" / "yet")


def test_tools_that_are_not_there_are_no_failure(planner: Runner, monkeypatch):
    monkeypatch.setenv("PATH", "")
    result = planner("doctor", "--json")
    assert result.code == 0
    statuses = {c["name"]: c["status"] for c in result.facts["checks"] if c["group"] == "tools"}
    assert statuses == dict.fromkeys(("shellcheck", "docker compose", "kubectl"), "missing")


def test_docker_without_compose_is_not_enough(tmp_path: Path, monkeypatch):
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexit 1\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert found("docker compose").health is Health.MISSING
    docker.write_text("#!/bin/sh\nexit 0\n")
    assert found("docker compose").health is Health.OK


def test_devices_are_asked_for_only_in_full_and_in_a_process_of_its_own(monkeypatch):
    without(monkeypatch, "torch", "2.9.0")
    asked: list[list[str]] = []
    real = subprocess.run

    def run(command, **options):
        if command[0] != sys.executable:
            return real(command, **options)
        asked.append(command)
        assert options["timeout"] > 0
        return subprocess.CompletedProcess(command, 0, stdout='["NVIDIA H200"]', stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    assert "torch devices" not in {c.name for c in examine()}
    assert asked == []
    assert found("torch devices", full=True).detail == "NVIDIA H200"
    assert "import json, torch" in asked[0][2]


def test_torch_that_hangs_is_given_up(monkeypatch):
    without(monkeypatch, "torch", "2.9.0")
    monkeypatch.setattr(doctor, "_DEVICES", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "_DEVICE_SECONDS", 0.2)
    check = found("torch devices", full=True)
    assert check.health is Health.MISSING
    assert "TimeoutExpired" in check.detail


@pytest.mark.slow
def test_looking_loads_no_torch():
    assert (
        loaded_by("from planner.doctor import examine\nlist(examine())") & {"torch", "matplotlib", "pandas"}
        == set()
    )
    assert loaded_by("import planner.cli.doctor") & {"numpy", "numba", "pulp", "yaml", "pydantic"} == set()
