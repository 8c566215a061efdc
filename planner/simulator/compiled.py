"""How the event loop is compiled: once per machine, kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

_njit: Any = numba.njit
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(inline: bool = False) -> Callable[[Function], Function]:
    """Compile a function when it is first called; `inline` puts its code where it is called.

    The machine code is kept beside the source or, where that folder cannot be written, in the user's
    cache. Where neither can be, it is compiled anew in every process: numba refuses then, rather than
    doing without, and a folder that others may write to would let them plant code.

    Compiled functions own no memory: without counting references to arrays (``_nrt``), which every inlined
    call would do for each of its arguments, the event loop is five times as fast.
    """
    options = {
        "inline": "always" if inline else "never",
        "error_model": "numpy",
        "nogil": True,
        "_nrt": False,
    }

    def decorate(function: Function) -> Function:
        try:
            return cast(Function, _njit(cache=True, **options)(function))
        except RuntimeError:
            return cast(Function, _njit(**options)(function))

    return decorate


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether the machine code of a function is in memory, or on disk from an earlier run."""
    dispatcher: Any = function
    if dispatcher.signatures:
        return True
    folder = getattr(getattr(dispatcher, "_cache", None), "cache_path", None)
    name = f"{dispatcher.py_func.__module__.rsplit('.', 1)[-1]}.{dispatcher.py_func.__name__}-"
    return folder is not None and any(entry.name.startswith(name) for entry in Path(folder).glob("*.nbc"))
