"""Names that the shell completes, read from the catalogues when it asks."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

Items = list[CompletionItem]


def _starting(names: Iterable[str], incomplete: str) -> Items:
    """Names that begin so, in any case, by their last part too: a model without its organisation."""
    start = incomplete.lower()
    folded = ((name, name.lower()) for name in names)
    return [
        CompletionItem(name)
        for name, low in folded
        if low.startswith(start) or (start and low.rpartition("/")[2].startswith(start))
    ]


def _paths(incomplete: str) -> Items:
    """What has a slash or starts with a dot may be a file: left to the shell."""
    return [CompletionItem(incomplete, type="file")]


def complete_models(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Models of the catalogue; else files."""
    from planner.catalog import model_names  # only a shell that completes pays for it

    return _starting(model_names(), incomplete) or _paths(incomplete)


def complete_gpus(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """GPU profiles; else files."""
    from planner.catalog import gpu_names  # only a shell that completes pays for it

    return _starting(gpu_names(), incomplete) or _paths(incomplete)


def complete_presets(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    """Recorded traffic; else files."""
    from planner.catalog import traffic_names  # only a shell that completes pays for it

    return _starting(traffic_names(), incomplete) or _paths(incomplete)


def complete_engines(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    from planner.engines import engine_names  # only a shell that completes pays for it

    return _starting(engine_names(), incomplete)


def complete_targets(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> Items:
    from planner.deploy.targets import TARGETS  # only a shell that completes pays for it

    return _starting(TARGETS, incomplete)
