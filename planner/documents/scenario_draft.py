"""A first scenario from a few answers: the commented text of its file, and what is wrong with the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner import catalog
from planner.documents.files import path_seen_from
from planner.documents.scenario import scenario_from_text
from planner.documents.yaml_text import dump_yaml
from planner.engines import load_engine
from planner.engines.formats import gpu_obstacle
from planner.errors import Problem, SpecError
from planner.specs import Objective, PriceClass

FILL_IN = "FILL IN"
"""Stands in the comment where a price is missing."""

_SOME_PRICE = 1.0  # of a GPU without one, while the rest of the file is checked [USD/h]
_STATUSES = ("checked", "second-hand", "unverified")
_COMMENT_COLUMN = 34


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftGpu:
    """GPUs of one type that may be used.

    Attributes
    ----------
    name : str
        GPU profile or cloud instance, by name or path.
    price : float or None
        Of one GPU; None: not said. [USD/h]
    price_source : str
        Where the price was looked up; empty: the user's own.
    owned : bool
        Already paid for.
    max_gpus : int or None
        None: no limit.
    node_size : int or None
        GPUs of the server that the price is of; None: the usual.
    """

    name: str
    price: float | None = None
    price_source: str = ""
    owned: bool = False
    max_gpus: int | None = None
    node_size: int | None = None

    def at(self, known: KnownPrice) -> DraftGpu:
        """The same at a price that was looked up."""
        return replace(self, price=known.price, price_source=known.source, node_size=known.node_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownPrice:
    """Of one GPU [USD/h], where it comes from, and the GPUs of that server where they are not the usual."""

    price: float
    source: str
    node_size: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """Answers; those that are left out are ones that no rule refuses. Latencies in ms, as in the file."""

    model: str = "meta-llama/Llama-3.1-8B-Instruct"
    engine: str = "vllm"
    rate: float | None = None
    isl: float | None = None
    osl: float | None = None
    preset: str = ""
    trace: str = ""
    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    fleet: tuple[DraftGpu, ...] = ()
    objective: str = Objective.COST.value

    @property
    def recorded(self) -> str:
        """Key of the recorded traffic that gives rate and lengths; empty: there is none."""
        return "preset" if self.preset else "trace" if self.trace else ""

    @property
    def priced(self) -> bool:
        """Whether GPUs need a price."""
        return self.objective == Objective.COST


def seen_from_folder(key: str, name: str, folder: Path) -> str:
    """A name that a user gave, as the file in `folder` has to say it: paths start there, not where one is."""
    file = key == "trace" or (catalog.names_file(key, name) and not (key == "gpu" and is_instance(name)))
    return path_seen_from(name, Path(), folder) if name and file else name


def is_instance(name: str) -> bool:
    """Whether a GPU's name is that of a cloud's server."""
    try:
        catalog.load_instance(name)
    except SpecError:
        return False
    return True


def known_price(name: str, folder: Path | None = None) -> KnownPrice | None:
    """The lowest price of one GPU on demand, of those that are best known, and where it comes from.

    Servers of the GPU's usual size come first: the price of a GPU rented alone buys no whole node. None where
    no cloud of the catalogue has a price. Instances bring their own.
    """
    gpu = catalog.load_gpu(name, folder)
    offers = [i for i in catalog.cloud_instances() if i.gpu == gpu.name and i.price_per_gpu is not None]
    if not offers:
        return None
    usual = [i for i in offers if i.gpus == gpu.node_size]
    best = min(usual or offers, key=lambda i: (_STATUSES.index(i.status), not i.date, i.price_per_gpu))
    assert best.price_per_gpu is not None
    return KnownPrice(
        price=best.price_per_gpu,
        source=best.price_source(PriceClass.ON_DEMAND),
        node_size=None if usual else best.gpus,
    )


def without_price(draft: Draft) -> tuple[str, ...]:
    """GPUs whose price nobody knows, where one is needed: the file is refused until it has them."""
    missing = []
    for gpu in draft.fleet if draft.priced else ():
        if gpu.price is None and not gpu.owned:
            known = is_instance(gpu.name) and catalog.load_instance(gpu.name).price_per_gpu is not None
            missing += [] if known else [gpu.name]
    return tuple(missing)


# --------------------------------------------------------------------------------------------
# Rules


def draft_problems(draft: Draft, folder: Path | None = None) -> tuple[Problem, ...]:
    """What the reader of scenarios says of the answers, by key; `folder` is where relative paths start.

    A price that is still to be filled in is no problem.
    """
    whole = _completed(draft)
    try:
        scenario_from_text(draft_text(_priced(whole)), "scenario", folder=folder)
    except SpecError as error:
        return error.problems
    engine, found = load_engine(whole.engine), []
    for i, item in enumerate(draft.fleet):
        instance = is_instance(item.name)
        name = catalog.load_instance(item.name).gpu if instance else item.name
        if gap := gpu_obstacle(catalog.load_gpu(name, folder), engine):
            found.append(Problem(key=f"fleet[{i}].gpu", rule=gap))
        if draft.objective == Objective.THROUGHPUT and item.max_gpus is None:
            rule = f"{item.name}: the largest rate needs to know how many GPUs there are"
            found.append(Problem(key=f"fleet[{i}].max_gpus", rule=rule))
    return tuple(found)


def _completed(draft: Draft) -> Draft:
    """What was not answered yet, filled with what no rule refuses."""

    def filled(value: float | None, *, needed: bool) -> float | None:
        return 1.0 if value is None and needed else value

    own = not draft.recorded
    return replace(
        draft,
        rate=filled(draft.rate, needed=own),
        isl=filled(draft.isl, needed=own),
        osl=filled(draft.osl, needed=own),
        ttft_p99_ms=filled(draft.ttft_p99_ms, needed=draft.tpot_p99_ms is None),
        fleet=draft.fleet or (DraftGpu(name="h100-sxm"),),
    )


def _priced(draft: Draft) -> Draft:
    missing = without_price(draft)
    fleet = (replace(g, price=_SOME_PRICE) if g.name in missing else g for g in draft.fleet)
    return replace(draft, fleet=tuple(fleet))


# --------------------------------------------------------------------------------------------
# The file


def draft_text(draft: Draft) -> str:
    """The scenario's file, with a word on every key; `draft` has all answers."""
    parts = (_HEAD, _served(draft), _workload(draft), _slo(draft), _fleet(draft), _end(draft))
    return "\n".join("\n".join(part) + "\n" for part in parts)


_HEAD = (
    "# A question to planner: which GPUs, and how many, serve this traffic within these limits?",
    "# planner solve THIS-FILE -o plan.yaml answers it; planner schema scenario lists every key.",
)


def _line(key: str, value: Any, comment: str = "", indent: str = "") -> str:
    """A key with its value as YAML has it, and a comment beside it."""
    text = indent + dump_yaml({key: value}).rstrip("\n")
    return f"{text:<{_COMMENT_COLUMN}}  # {comment}" if comment else text


def _number(value: float | None) -> float | int | None:
    return int(value) if value is not None and float(value).is_integer() else value


def _served(draft: Draft) -> list[str]:
    return [
        "# Catalogue name (planner models), or path to a Hugging Face config.json or model directory.",
        _line("model", draft.model),
        _line("engine", draft.engine, "vllm, sglang or trtllm"),
        '# precision: {weights: fp8, kv_cache: fp8}   # left out: as the checkpoint has them; "auto": chosen',
    ]


def _workload(draft: Draft) -> list[str]:
    lines = ["workload:"]
    for key, name in (("preset", draft.preset), ("trace", draft.trace)):
        if name:
            what = "recorded traffic: rate, lengths, burstiness (planner workload reads your own)"
            lines.append(_line(key, name, what, "  "))
    if draft.rate is not None:
        said = "arrivals, on average; or 24 hourly rates: [8, 5, ...] [req/s]"
        lines.append(_line("request_rate", _number(draft.rate), said, "  "))
    elif draft.recorded and draft.objective != Objective.THROUGHPUT:
        lines.append("  # request_rate: 10              # instead of the recorded one [req/s]")
    sides = (("input_tokens", draft.isl, "prompt"), ("output_tokens", draft.osl, "answer"))
    for key, value, what in sides:
        if value is not None:
            said = f"of every {what}; or {{mean: .., cv: ..}}, or {{p50: .., p90: .., p99: ..}} [tok]"
            lines.append(_line(key, _number(value), said, "  "))
    lines.append("  # prefix_cache_hit_rate: 0.3    # share of input tokens found in the prefix cache [1]")
    return lines


def _slo(draft: Draft) -> list[str]:
    lines = ["slo:  # each must hold; mean, p50, p90, p95 and p99 can be bounded"]
    limits = (
        ("ttft_ms", draft.ttft_p99_ms, "time to first token [ms]"),
        ("tpot_ms", draft.tpot_p99_ms, "mean time per output token after the first [ms]"),
    )
    for key, limit, what in limits:
        if limit is not None:
            limit_text = _number(limit)
            lines.append(f"{f'  {key}: {{p99: {limit_text!r}}}':<{_COMMENT_COLUMN}}  # {what}")
    return lines


def _fleet(draft: Draft) -> list[str]:
    lines = ["fleet:  # GPU types to choose from (planner gpus)"]
    for gpu in draft.fleet:
        key = "instance" if is_instance(gpu.name) else "gpu"
        lines.append(_line(key, gpu.name, _offer(gpu) if key == "instance" else "", "  - "))
        lines += [_line(name, value, said, "    ") for name, value, said in _gpu_keys(draft, gpu)]
        if gpu.name in without_price(draft):
            said = (
                f"{FILL_IN}: no price of it is known here; planner solve refuses the file without one [USD/h]"
            )
            lines.append(f"    # price_per_gpu_hour:         # {said}")
        if gpu.max_gpus is None:
            lines.append("    # max_gpus: 16                # GPUs that can be had; left out: any number")
    return lines


def _offer(gpu: DraftGpu) -> str:
    """Price that an instance brings."""
    instance = catalog.load_instance(gpu.name)
    price = instance.price_per_gpu
    if gpu.owned or gpu.price is not None or price is None:
        return ""
    return f"{price:.6g} USD/h a GPU: {instance.price_source()}; prices move"


def _gpu_keys(draft: Draft, gpu: DraftGpu) -> list[tuple[str, Any, str]]:
    keys: list[tuple[str, Any, str]] = []
    if gpu.owned:
        keys.append(("owned", True, "already paid for"))
    elif gpu.price is not None:
        said = f"{gpu.price_source}; prices move: put yours here [USD/h]" if gpu.price_source else "[USD/h]"
        keys.append(("price_per_gpu_hour", _number(gpu.price), said))
    if gpu.node_size is not None:
        keys.append(("node_size", gpu.node_size, "GPUs of the server that this price is of"))
    if gpu.max_gpus is not None:
        keys.append(("max_gpus", gpu.max_gpus, "GPUs that can be had"))
    return keys


def _end(draft: Draft) -> list[str]:
    return [
        _line("objective", draft.objective, "cost, gpus, power or throughput (the most that is carried)"),
        "# options:",
        "#   confidence: 0.8     # probability that the plan holds, given what the model may be wrong by",
        "#   spare_replicas: 1   # of each pool, that may fail",
        "#   headroom: 0.2       # traffic to be ready for beyond the rate, as a share of it",
    ]


ANSWERS: Mapping[str, str] = {
    "model": "model",
    "engine": "engine",
    "workload.request_rate": "rate",
    "workload.input_tokens": "isl",
    "workload.output_tokens": "osl",
    "workload.preset": "preset",
    "workload.trace": "trace",
    "slo.ttft_ms": "ttft_p99_ms",
    "slo.tpot_ms": "tpot_p99_ms",
    "fleet": "fleet",
    "objective": "objective",
}
"""Fields of a draft by the keys of the file."""


def answer_of(key: str) -> str:
    """The field of a draft that a key of the file comes from; empty where it is none."""
    return next((answer for known, answer in ANSWERS.items() if key.startswith(known)), "")
