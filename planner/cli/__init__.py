"""The command line: parse, call, print. The only place that imports click.

Commands are imported when they run, so that ``planner --help`` loads neither numpy nor the solver.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from planner import __version__
from planner.errors import PlannerError

_COMMANDS = {
    "solve": ("planner.cli.solve", "Find the cheapest fleet that meets a scenario."),
    "predict": ("planner.cli.predict", "TTFT and TPOT of one configuration, by operator."),
    "models": ("planner.cli.look_up", "Models that are known by name, and facts of any model."),
    "gpus": ("planner.cli.look_up", "GPU profiles: peaks, calibration and where they come from."),
    "schema": ("planner.cli.look_up", "JSON Schemas of the files, for editors."),
}
_INTERRUPTED = 130


class _LazyGroup(click.Group):
    """A group whose commands are imported on use; help texts are kept here."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _ = _COMMANDS[cmd_name]
        command = getattr(import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches  # a typo may pay for it

            near = get_close_matches(name, _COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Commands: {', '.join(_COMMANDS)}."
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="planner")
def group() -> None:
    """Plan GPU capacity for disaggregated LLM serving.

    Which GPU types, and how many, for prefill and for decode, so that TTFT and TPOT objectives are met
    at least cost.

    Exit codes: 0 ok, 2 bad input, 3 infeasible, 4 the solver failed or ran out of time, 5 the plan
    did not hold in simulation.
    """


def main(prog_name: str = "planner") -> None:
    """Run the command line and end the process with its exit code."""
    try:
        code = group.main(prog_name=prog_name, standalone_mode=False)
    except PlannerError as error:
        code = _fail(str(error), error.exit_code)
    except click.exceptions.Abort:
        code = _fail("interrupted; nothing was written", _INTERRUPTED)
    except KeyboardInterrupt:
        code = _fail("interrupted; nothing was written", _INTERRUPTED)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except BrokenPipeError:
        _silence_stdout()
        code = 0
    except Exception as error:
        if os.environ.get("PLANNER_DEBUG"):
            raise
        text = (
            f"internal error: {type(error).__name__}: {error}\nPLANNER_DEBUG=1 shows where; please report it"
        )
        code = _fail(text, 1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> int:
    click.echo(f"planner: {message}", err=True)
    return code


def _silence_stdout() -> None:
    """The reader of a pipe has left: keep the interpreter from complaining on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
