"""How the event loop is compiled: once per machine, kept on disk."""

from __future__ import annotations

from collections.abc import Callable
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
