"""How the event loop is compiled: once per machine, kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

_njit: Any = numba.njit
Function = TypeVar("Function", bound=Callable[..., Any])

COMPILING = "compiling the simulator, once on this machine (20 seconds)"
"""What a progress line says where :func:`is_compiled` does not hold."""

# Compiled functions own no memory: without counting references to arrays (``_nrt``), which every call would
# do for each of its arguments, the event loop is several times as fast.
_OPTIONS = {"error_model": "numpy", "nogil": True, "_nrt": False}


def part(*, inline: bool = False, once: bool = False) -> Callable[[Function], Function]:
    """A function that only compiled ones of its own file call.

    Its code is put where it is called: with `inline` by the compiler's back end; with `once`, for functions
    called in one place, before anything is compiled, so that they are not compiled by themselves as well.
    Python cannot call it: what that would need takes longer to compile than the function itself.
    """
    options = {
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
        "forceinline": inline,
        "inline": "always" if once else "never",
    }

    def decorate(function: Function) -> Function:
        return cast(Function, _njit(**options, **_OPTIONS)(function))

    return decorate


def entry(function: Function) -> Function:
    """A function that Python calls, compiled with its parts when it is first called.

    The machine code is kept beside the source or, where that folder cannot be written, in the user's
    cache. Where neither can be, it is compiled anew in every process: numba refuses then, rather than
    doing without, and a folder that others may write to would let them plant code.
    """
    try:
        return cast(Function, _njit(cache=True, **_OPTIONS)(function))
    except RuntimeError:
        return cast(Function, _njit(**_OPTIONS)(function))


def cache_folder(function: Callable[..., Any]) -> Path | None:
    """Where the machine code of a function is kept; None where it is compiled anew in every process."""
    folder = getattr(getattr(function, "_cache", None), "cache_path", None)
    return None if folder is None else Path(folder)


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether the machine code of a function is in memory, or on disk from an earlier run."""
    dispatcher: Any = function
    if dispatcher.signatures:
        return True
    folder = cache_folder(function)
    name = f"{dispatcher.py_func.__module__.rsplit('.', 1)[-1]}.{dispatcher.py_func.__name__}-"
    return folder is not None and any(entry.name.startswith(name) for entry in folder.glob("*.nbc"))
