"""Proof, without a GPU or a network, that a folder is well formed."""

from __future__ import annotations

from pathlib import Path

from planner.deploy.check_engines import (
    clashes,
    compose_findings,
    counts,
    script_findings,
)
from planner.deploy.check_fronts import load_test_findings, pair_findings, router_findings
from planner.deploy.check_parts import leader_findings
from planner.deploy.check_texts import plan_findings, text_findings
from planner.deploy.dialect import Dialect
from planner.deploy.engine_facts import load_engine_facts
from planner.deploy.findings import Finding
from planner.deploy.reading import (
    engine_flags,
    engine_of_script,
    read_manifest,
    read_scripts,
)


def folder_findings(folder: Path, dialect: Dialect) -> tuple[Finding, ...]:
    """Everything that is wrong with a folder that was written in a dialect.

    Raises
    ------
    SpecError
        It has no manifest, or one of versions whose flags are not known.
    """
    manifest = read_manifest(folder)
    flags, facts = engine_flags(manifest), load_engine_facts(manifest.engine, manifest.version)
    found = [*text_findings(folder, manifest)]
    plan, problems = plan_findings(folder, manifest)
    scripts = read_scripts(folder, manifest)
    for group in manifest.groups:
        if group.name in scripts:
            found += script_findings(dialect, group, scripts[group.name], flags, facts)
    services, more = compose_findings(dialect, folder, manifest, scripts, flags, facts)
    found += [*problems, *more, *counts(manifest, scripts, services), *clashes(manifest, scripts)]
    found += leader_findings(dialect, manifest, services, flags)
    shared = {name: engine_of_script(name, script, dialect.program) for name, script in scripts.items()}
    if plan is not None:
        found += pair_findings(dialect, plan, folder, manifest, shared, flags)
    found += router_findings(dialect, folder, manifest, scripts, facts)
    found += dialect.file_faults(folder, manifest, flags)
    found += load_test_findings(folder, manifest, facts)
    return tuple(sorted(set(found)))
