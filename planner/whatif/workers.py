"""Work on other processes: of this machine, or of a Dask cluster; joblib does both."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from planner import __version__
from planner.errors import PlannerError, SpecError

if TYPE_CHECKING:
    from distributed import Client

Task = TypeVar("Task")
Result = TypeVar("Result")

ENGINES = ("local", "dask")
MOST_JOBS = 512
_ADDRESS = re.compile(r"(?:[a-z]+://)?[^\s/:]+:[0-9]{1,5}")  # of a scheduler
_CONNECT = 10.0  # time to find a scheduler [s]


@dataclass(frozen=True, kw_only=True, slots=True)
class Workers:
    """Who works.

    Attributes
    ----------
    engine : str
        "local": processes of this machine; "dask": the workers of a cluster.
    address : str
        HOST:PORT of the cluster's scheduler.
    jobs : int or None
        Processes of this machine; None: one per core that it may use. 1: the calling process itself.
    """

    engine: str = "local"
    address: str = ""
    jobs: int | None = None

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise SpecError(f"unknown engine {self.engine!r} (one of {', '.join(ENGINES)})")
        if (self.engine == "dask") != bool(self.address):
            raise SpecError("the address of a scheduler and engine dask belong together: give both, or none")
        if self.address and not _ADDRESS.fullmatch(self.address):
            raise SpecError(f"the address of a scheduler must be HOST:PORT, got {self.address!r}")
        if self.jobs is not None and not 1 <= self.jobs <= MOST_JOBS:
            raise SpecError(f"jobs must be 1 to {MOST_JOBS}, got {self.jobs}")
        if self.engine == "dask" and self.jobs is not None:
            raise SpecError("jobs is for this machine: a cluster has as many as it has workers")

    def count(self, tasks: int) -> int:
        """Processes of this machine for so many tasks."""
        return max(min(self.jobs or _cores(), tasks), 1)


def _cores() -> int:
    """Cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # not everywhere
    return os.cpu_count() or 1 if allowed is None else len(allowed(0))


def unordered(work: Callable[[Task], Result], tasks: Sequence[Task], workers: Workers) -> Iterator[Result]:
    """Results of `work`, a function of a module, on all tasks, as they come.

    Raises
    ------
    SpecError
        If the cluster cannot be reached, or runs another planner.
    PlannerError
        If a worker died.
    """
    if workers.engine == "local" and workers.count(len(tasks)) == 1:
        yield from map(work, tasks)
        return
    import joblib  # loads its helpers, which a single process does without

    with _backend(workers, len(tasks)):
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
        results = parallel(joblib.delayed(_uninterrupted)(work, task) for task in tasks)
        try:
            yield from results
        except _died() as error:
            raise PlannerError(f"a worker died, perhaps for want of memory: {_first_line(error)}") from None
        finally:
            results.close()


def _uninterrupted(work: Callable[[Task], Result], task: Task) -> Result:
    """Do a task on a worker, which leaves Ctrl-C to the process that gave it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return work(task)


def _died() -> tuple[type[BaseException], ...]:
    """What is raised for a process that is gone."""
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    try:
        from distributed import CommClosedError, KilledWorker
    except ImportError:
        return (TerminatedWorkerError,)
    return (TerminatedWorkerError, KilledWorker, CommClosedError)


@contextmanager
def _backend(workers: Workers, tasks: int) -> Iterator[None]:
    """joblib's settings for these workers."""
    import joblib

    connected: AbstractContextManager[Any] = nullcontext()
    settings: dict[str, Any] = {"backend": "loky", "n_jobs": workers.count(tasks)}
    if workers.engine == "dask":
        connected = _client(workers.address)
    with connected as client:
        if client is not None:
            settings = {"backend": "dask", "client": client}
        with joblib.parallel_config(**settings):
            yield


def _client(address: str) -> Client:
    """A connection to a scheduler whose workers run the same planner.

    Raises
    ------
    SpecError
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise SpecError(f"engine dask needs distributed: pip install 'pd-planner[dask]' ({error})") from None
    try:
        client = Client(address, timeout=_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        rule = f"no Dask scheduler answers at {address}: {_first_line(error)}"
        raise SpecError(f"{rule} (start one: dask scheduler, then dask worker HOST:PORT)") from None
    try:
        versions = client.run(_version)
        if not versions:
            raise SpecError(f"the scheduler at {address} has no workers (start some: dask worker {address})")
        if others := sorted({str(v) for v in versions.values()} - {__version__}):
            found = ", ".join(others)
            raise SpecError(f"the workers at {address} have planner {found}, here it is {__version__}")
    except BaseException as error:
        client.close()
        if isinstance(error, ModuleNotFoundError):
            raise SpecError(f"the workers at {address} lack a package: {error}") from None
        raise
    return client


def _version() -> str:
    """Of the planner on a worker."""
    return __version__


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
