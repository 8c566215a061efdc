"""A deployment as objects that an operator applies, with the scripts beside them."""

from __future__ import annotations

from planner.deploy.command_text import comment, quoted
from planner.deploy.description import Deployment, checked_for
from planner.deploy.kubernetes.platform import Orchestrator
from planner.deploy.kubernetes.pods import Object
from planner.deploy.manifest import manifest_text, suffixes
from planner.deploy.probes import load_test_text
from planner.deploy.readme import readme_text
from planner.documents.yaml_text import dump_yaml


def folder_files(orchestrator: Orchestrator, deployment: Deployment, plan_text: str) -> dict[str, str]:
    """Files of the deployment by their path in its folder."""
    objects = orchestrator.objects(deployment)
    files = {"plan.yaml": plan_text}
    files |= {name: object_text(deployment, body) for name, body in objects.items()}
    files["kustomization.yaml"] = object_text(deployment, _kustomization(list(objects)))
    for front, suffix in zip(deployment.fronts, suffixes(deployment), strict=True):
        files |= orchestrator.other_files(deployment, front, suffix)
        files[f"smoke-check{suffix}.sh"] = orchestrator.smoke(deployment, front)
        files[f"load-test{suffix}.sh"] = load_test_text(deployment, front, f"result{suffix}.json")
    if deployment.stages:
        files["scale.sh"] = scale_text(orchestrator, deployment)
    files["README.md"] = readme_text(deployment, tuple(orchestrator.how_to_start(deployment)))
    files["manifest.yaml"] = manifest_text(deployment, orchestrator.target, sorted(files))
    return files


def object_text(deployment: Deployment, body: Object) -> str:
    """An object as YAML, with the plan that it was written for."""
    told = f"plan {deployment.plan_id}; flags and fields checked for {checked_for(deployment)}"
    return f"{comment(told)}\n{dump_yaml(body)}"


def scale_text(orchestrator: Orchestrator, deployment: Deployment) -> str:
    """Gives every group the replicas that a period of the plan's traffic needs."""
    cases = []
    for stage in deployment.stages:
        cases.append(f"  {quoted(stage.name)})")
        for front in deployment.fronts:
            for group in front.groups:
                words = orchestrator.scaled(deployment, front, group, stage.replicas[group.name])
                cases.append("    " + " ".join(map(quoted, ("kubectl", *words))))
        cases.append("    ;;")
    names = ", ".join(stage.name for stage in deployment.stages)
    lines = [
        "#!/bin/sh",
        comment(f"Sets the replicas of a period: {names}"),
        comment(f"plan {deployment.plan_id}; for {checked_for(deployment)}"),
        "set -eu",
        'case "${1:-}" in',
        *cases,
        "  *)",
        "    printf '%s\\n' " + quoted(f"usage: scale.sh PERIOD ({names})") + " >&2",
        "    exit 2",
        "    ;;",
        "esac",
    ]
    return "\n".join(lines) + "\n"


def _kustomization(names: list[str]) -> Object:
    """Lists all objects, for ``kubectl apply -k``."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": names,
    }
