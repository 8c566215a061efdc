"""What tools read of an engine's flags from the sources in its wheel."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

VLLM_SOURCES = {
    "vllm/engine/arg_utils.py": """
import argparse
from vllm.config import ParallelConfig, VllmConfig, get_kwargs
human_readable_int_args = {"max_tokens"}
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        kwargs = get_kwargs(ParallelConfig)
        group = parser.add_argument_group()
        group.add_argument("--size", "-s", **kwargs["size"])
        group.add_argument("--max-tokens", **{**kwargs["max_tokens"], "default": None})
        group.add_argument("--fast", **kwargs["fast"])
        group.add_argument("--names", **kwargs["names"])
        backend = kwargs["backend"]
        backend["type"] = lambda s: s.lower().replace("-", "_")
        group.add_argument("--backend", **backend)
        group.add_argument("--format", **kwargs["format"])
        config = get_kwargs(VllmConfig)["parallel"]
        group.add_argument("--parallel-config", **config)
        parser.add_argument("--quiet", action="store_true")
        parser.add_argument("--device", choices=["cpu"] + [platform.name])
class AsyncEngineArgs(EngineArgs):
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--log", action=argparse.BooleanOptionalAction)
""",
    "vllm/config/__init__.py": "from .parallel import Backend, ParallelConfig, VllmConfig",
    "vllm/config/parallel.py": """
from typing import Literal
from pydantic import Field
Backend = Literal["a_b", "c"]
@config
class ParallelConfig:
    size: int = Field(default=1, ge=1)
    max_tokens: int | None = None
    fast: bool = False
    names: list[str] | None = None
    backend: Backend = "c"
    format: str | Literal["auto", "fp8"] = "auto"
@config
class VllmConfig:
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
""",
    "vllm/config/kv_transfer.py": """
from typing import Literal
Producer = Literal["kv_producer", "kv_both"]
class KVTransferConfig:
    kv_role: Literal[Producer, "kv_consumer"] | None = None
    kv_port: int = 1
""",
    "vllm/distributed/kv_transfer/kv_connector/factory.py": 'Factory.register_connector("Nixl", "a", "b")',
}

SGLANG_SOURCES = {
    "sglang/srt/arg_groups/choices.py": 'BACKENDS = ["nixl"] + ["fake"]',
    "sglang/srt/arg_groups/fields/all.py": """
from sglang.srt.arg_groups.choices import BACKENDS
class Fields:
    _NS_PATH = "all"
    tp_size: A[int, Arg(help="TP", cli_name="--tp-size", aliases=["--tensor-parallel-size"])] = 1
    mode: A[Literal["null", "prefill"], "mode"] = "null"
    backend: A[str, Arg(help="b", choices=BACKENDS)] = "nixl"
    rate: A[Optional[float], "rate"] = None
    chunk: A[Optional[int], Arg(help="c", type_parser=human_readable_int)] = None
    ports: A[Optional[List[int]], "ports"] = None
    extra: A[Optional[dict], Arg(help="e", type_parser=json.loads)] = None
    radix: A[bool, Arg(help="r", action=argparse.BooleanOptionalAction)] = True
    quiet: A[bool, "quiet"] = False
    hidden: A[str, Arg(help="h", no_cli=True)] = ""
    derived = Derived(doc="not of the command line")
""",
    "sglang/srt/server_args.py": """
class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--config", type=str)
        parser.add_argument("--old", action=DeprecatedStoreTrueAction)
        parser.add_argument("--parser", choices=["auto"] + names())
""",
}


@pytest.mark.parametrize(
    ("engine", "sources", "expected"),
    [
        ("vllm", VLLM_SOURCES,
         {"--size": {"type": "int", "aliases": ["-s"], "bounds": {"ge": 1.0}},
          "--max-tokens": {"type": "int", "suffix": True},
          "--fast": {"type": "bool", "negation": "--no-fast"},
          "--names": {"type": "list"},
          "--backend": {"type": "str", "choices": ["a_b", "c", "a-b"]},
          "--format": {"type": "str", "known": ["auto", "fp8"]},
          "--parallel-config": {"type": "json"},
          "--quiet": {"type": "bool"},
          "--device": {"type": "str"},
          "--log": {"type": "bool", "negation": "--no-log"}}),
        ("sglang", SGLANG_SOURCES,
         {"--tp-size": {"type": "int", "aliases": ["--tensor-parallel-size"]},
          "--mode": {"type": "str", "choices": ["null", "prefill"]},
          "--backend": {"type": "str", "choices": ["nixl", "fake"]},
          "--rate": {"type": "float"},
          "--chunk": {"type": "int", "suffix": True},
          "--ports": {"type": "list"},
          "--extra": {"type": "json"},
          "--radix": {"type": "bool", "negation": "--no-radix"},
          "--quiet": {"type": "bool"},
          "--config": {"type": "str"},
          "--old": {"type": "bool"},
          "--parser": {"type": "str"}}),
    ],
)  # fmt: skip
def test_flags_are_read_from_sources_in_a_wheel(engine, sources, expected, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import build_flag_lists
    import read_engine_flags

    wheel = tmp_path / f"{engine}-9.8.7-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in sources.items():
            archive.writestr(name, text)
    monkeypatch.setattr("sys.argv", ["read_engine_flags.py", str(wheel), str(tmp_path)])
    read_engine_flags.main()
    facts = json.loads((tmp_path / f"{engine}-engine-9.8.7.json").read_text(encoding="utf-8"))
    made = [build_flag_lists.compact(flag, False) for flag in facts["flags"]]
    assert {flag.pop("name"): flag for flag in made} == expected
    if engine == "vllm":
        assert facts["kv_connectors"] == ["Nixl"]
        assert facts["kv_transfer_config_fields"]["kv_role"]["choices"] == [
            "kv_producer", "kv_both", "kv_consumer",
        ]  # fmt: skip
