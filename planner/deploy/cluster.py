"""What a site says of its Kubernetes cluster, validated; what it leaves out are placeholders."""

from __future__ import annotations

import re

from planner.deploy.description import PLACEHOLDER, Cluster, Toleration
from planner.deploy.words import safe_text
from planner.documents.schema_base import MAX_LABEL
from planner.documents.site_schema import NONE, KubernetesDocument, TolerationDocument
from planner.errors import SpecError

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_QUALIFIED = re.compile(rf"({_SUBDOMAIN.pattern}/)?[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_SIZE = re.compile(r"[1-9][0-9]*(Mi|Gi)")
_LONGEST = 253


def cluster_of(site: KubernetesDocument) -> Cluster:
    """The cluster that a site file describes.

    Raises
    ------
    SpecError
        A name is none that Kubernetes takes.
    """
    namespace = _given("namespace", site.namespace)
    if not _placeholder(namespace) and not _LABEL.fullmatch(namespace):
        rule = f"must be up to {MAX_LABEL} small letters, digits and dashes"
        raise SpecError(f"kubernetes.namespace: {rule}, got {namespace!r}")
    return Cluster(
        namespace=namespace,
        token_secret=_object("token_secret", site.token_secret),
        pull_secret=_object("pull_secret", site.pull_secret),
        model_claim=_object("model_claim", site.model_claim),
        rdma_resource=_resource(site.rdma_resource),
        rdma_count=site.rdma_count or 0,
        shared_memory=_size(site.shared_memory),
        tolerations=tuple(_toleration(one) for one in site.tolerations),
    )


def _given(key: str, text: str | None) -> str:
    return f"{PLACEHOLDER}{key.replace('_', '-')}" if text is None else safe_text(f"kubernetes.{key}", text)


def _placeholder(text: str) -> bool:
    return text.startswith(PLACEHOLDER)


def _object(key: str, text: str | None) -> str:
    """Name of an object; empty for ``none``."""
    name = _given(key, text)
    if name == NONE:
        return ""
    if not _placeholder(name) and not (_SUBDOMAIN.fullmatch(name) and len(name) <= _LONGEST):
        rule = "must be small letters, digits, dashes and dots, or none"
        raise SpecError(f"kubernetes.{key}: {rule}, got {name!r}")
    return name


def _resource(text: str | None) -> str:
    name = _given("rdma_resource", text)
    if name == NONE:
        return ""
    if not _placeholder(name) and not ("/" in name and _QUALIFIED.fullmatch(name)):
        rule = "must be a resource such as rdma/ib, or none"
        raise SpecError(f"kubernetes.rdma_resource: {rule}, got {name!r}")
    return name


def _size(text: str) -> str:
    if not _SIZE.fullmatch(text):
        raise SpecError(f"kubernetes.shared_memory: must be a size such as 32Gi, got {text!r}")
    return text


def _toleration(given: TolerationDocument) -> Toleration:
    if not _QUALIFIED.fullmatch(given.key):
        raise SpecError(f"kubernetes.tolerations: {given.key!r} is no key of a taint")
    if not _VALUE.fullmatch(given.value or ""):
        raise SpecError(f"kubernetes.tolerations: {given.value!r} is no value of a taint")
    return Toleration(key=given.key, value=given.value or "", effect=given.effect)
