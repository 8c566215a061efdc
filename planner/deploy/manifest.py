"""The manifest of an emitted folder: what stands in it, for which plan and versions."""

from __future__ import annotations

from typing import Any

from planner.deploy.description import Deployment, EngineGroup, Front, Host, Platform
from planner.documents.yaml_text import dump_yaml

NAME = "manifest.yaml"


def suffixes(deployment: Deployment) -> tuple[str, ...]:
    """What tells files of several routers apart; nothing where there is one."""
    alone = len(deployment.fronts) == 1
    return tuple("" if alone else f"-{front.name}" for front in deployment.fronts)


def manifest_text(deployment: Deployment, target: str, files: list[str]) -> str:
    """The manifest as YAML; `files` are all others of the folder."""
    platform = deployment.platform
    return dump_yaml(
        {
            "target": target,
            "plan": deployment.plan_id,
            **({} if platform is None else {"platform": _platform(platform)}),
            "engine": {"name": deployment.engine, "version": deployment.engine_version},
            "router": {"version": deployment.router_version},
            "image": deployment.image,
            **({"hosts": [_host(host) for host in deployment.hosts]} if platform is None else {}),
            "services": [
                _front(front, suffix, deployment.image)
                for front, suffix in zip(deployment.fronts, suffixes(deployment), strict=True)
            ],
            "files": files,
        }
    )


def _platform(platform: Platform) -> dict[str, Any]:
    return {
        "name": platform.name,
        "version": platform.version,
        "engine_version": platform.engine_version,
    }


def _host(host: Host) -> dict[str, Any]:
    return {"name": host.name, "address": host.address, "gpu": host.gpu, "gpus": host.gpus}


def _front(front: Front, suffix: str, image: str) -> dict[str, Any]:
    return {
        "name": front.name,
        "service": front.service,
        "model": front.model,
        "served_name": front.served_name,
        "files_end_in": suffix,
        "groups": [_group(group, image) for group in front.groups],
    }


def _group(group: EngineGroup, image: str) -> dict[str, Any]:
    label = {group.node_label.key: group.node_label.value} if group.node_label.key else {}
    return {
        "name": group.name,
        "planned_name": group.planned_name,
        "role": group.role.value,
        "gpu": group.gpu,
        **({"zone": group.zone} if group.zone else {}),
        "node_selector": label,
        **({} if group.image == image else {"image": group.image}),
        "replicas": group.replicas,
        "gpus_per_replica": group.parallelism.num_gpus,
        **({"hosts_per_replica": group.nodes} if group.nodes > 1 else {}),
    }
