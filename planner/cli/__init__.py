"""The command line: parse, call, print. The only place that imports click.

Commands are imported when they run, so that ``planner --help`` loads neither numpy nor the solver.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

import click

from planner import __version__
from planner.cli.lazy import LazyGroup
from planner.errors import PlannerError

_COMMANDS = {
    "init": ("planner.cli.init", "Write a first scenario: asked for on a terminal, or from options."),
    "solve": ("planner.cli.solve", "Find the cheapest fleet that meets a scenario."),
    "simulate": ("planner.cli.simulate", "Will it hold? Requests through the fleet of a plan."),
    "evaluate": (
        "planner.cli.simulate",
        "The most that a fleet carries within its SLOs.",
    ),
    "emit": ("planner.cli.emit", "Files that start the pools of a plan, for engines and clusters."),
    "check": ("planner.cli.check", "Proof that emitted files are well formed, without a GPU."),
    "import": ("planner.cli.import_plan", "Emitted files, back as a plan."),
    "judge": ("planner.cli.judge", "A load test against the plan: SLOs, predictions, what to measure."),
    "explain": ("planner.cli.explain", "Why this plan: what binds, what more is worth, why other GPUs lost."),
    "robustness": ("planner.cli.robustness", "What worse times cost, and when the plan's fleet breaks."),
    "pareto": ("planner.cli.pareto", "Cost against a latency limit, or against confidence."),
    "sweep": ("planner.cli.sweep", "The plan at every combination of values of some keys, as a table."),
    "tiers": ("planner.cli.tiers", "KV caches in host memory, on SSD or in a store: load, TTFT and cost."),
    "network": ("planner.cli.network", "The same scenario under other networks, and without hand-overs."),
    "compare": ("planner.cli.compare", "From one plan to another: what to add, move and remove."),
    "report": ("planner.cli.report", "A plan as one HTML page: what to run, cost, latencies, what-ifs."),
    "money": ("planner.cli.money", "A plan's bill: by month, pool, GPU and million tokens."),
    "predict": ("planner.cli.predict", "TTFT and TPOT of one configuration, by operator."),
    "validate": ("planner.cli.validate", "Predictions against measured latencies: how far off, and why."),
    "profile": ("planner.cli.profile", "Measure this machine's GPU (or CPU) with torch: its profile."),
    "calibrate": (
        "planner.cli.calibrate",
        "Your own measurements: an engine from load tests, a GPU from samples.",
    ),
    "memory": ("planner.cli.memory", "What fits on each GPU of a replica, line by line."),
    "models": ("planner.cli.look_up", "Models that are known by name, and facts of any model."),
    "gpus": ("planner.cli.look_up", "GPU profiles: peaks, calibration and where they come from."),
    "workload": ("planner.cli.workload", "Rate, burstiness, lengths and prefix reuse of a request trace."),
    "timeline": (
        "planner.cli.timeline",
        "Prefill, decode, stalls and KV transfer of requests, as a picture.",
    ),
    "schema": ("planner.cli.look_up", "JSON Schemas of the files, for editors."),
    "doctor": ("planner.cli.doctor", "What is installed, which solvers answer, what is missing."),
    "completion": ("planner.cli.completion", "Completion of commands, options and names in a shell."),
}
_INTERRUPTED = 130


@click.group(cls=LazyGroup, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="planner")
def group() -> None:
    """Plan GPU capacity for disaggregated LLM serving.

    Which GPU types, and how many, for prefill and for decode, so that TTFT and TPOT objectives are met
    at least cost.

    Exit codes: 0 ok, 1 internal error, 2 bad input, 3 infeasible, 4 the solver failed or ran out of time,
    5 the plan did not hold in simulation, 130 interrupted.
    """


def main(prog_name: str = "planner") -> None:
    """Run the command line and end the process with its exit code."""
    interrupts = _Interrupts.watched()
    try:
        code = group.main(prog_name=prog_name, standalone_mode=False)
    except PlannerError as error:
        code = _fail(str(error), error.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = _interrupted()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (BrokenPipeError, SystemExit) as ended:
        # click and rich leave by SystemExit(1) when a pipe's reader has left, and by 0 after completions
        if not (isinstance(ended, SystemExit) and ended.code == 0):
            _silence_stdout()
        code = 0
    except OSError as error:
        code = _fail(str(error), 1)
    except Exception as error:
        code = _interrupted() if interrupts.seen else _internal(error)
    sys.exit(code if isinstance(code, int) else 0)


class _Interrupts:
    """Remembers Ctrl-C, because an extension may wrap the KeyboardInterrupt into an error of its own."""

    def __init__(self) -> None:
        self.seen = False

    @classmethod
    def watched(cls) -> _Interrupts:
        watch = cls()
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, watch._note)
        return watch

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        signal.default_int_handler(number, frame)


def _interrupted() -> int:
    return _fail("interrupted; nothing was written", _INTERRUPTED)


def _internal(error: Exception) -> int:
    if os.environ.get("PLANNER_DEBUG"):
        raise error
    text = f"internal error: {type(error).__name__}: {error}\nPLANNER_DEBUG=1 shows where; please report it"
    return _fail(text, 1)


def _fail(message: str, code: int) -> int:
    click.echo(f"planner: {message}", err=True)
    return code


def _silence_stdout() -> None:
    """The reader of a pipe has left: keep the interpreter from complaining on exit."""
    if sys.stdout is None:
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
