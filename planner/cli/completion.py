"""``planner completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from planner.errors import SpecError

PROGRAM = "planner"
VARIABLE = "_PLANNER_COMPLETE"
"""By which the script asks the program for completions."""

_WHERE = {
    "bash": 'eval "$(planner completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(planner completion zsh)" in ~/.zshrc, after compinit',
    "fish": "planner completion fish > ~/.config/fish/completions/planner.fish",
}


@click.command(epilog="\n\n".join(f"{shell}: {where}" for shell, where in _WHERE.items()))
@click.argument("shell", type=click.Choice(list(_WHERE)))
def completion(shell: str) -> None:
    """The script by which SHELL completes commands, options, and names of models, GPUs and the like."""
    root = click.get_current_context().find_root().command
    complete = get_completion_class(shell)
    assert complete is not None  # the shells above are click's own
    try:
        script = complete(root, {}, PROGRAM, VARIABLE).source()
    except (OSError, RuntimeError) as error:  # click asks bash for its version
        raise SpecError(f"no completion for {shell}: {error}") from None
    click.echo(script)
