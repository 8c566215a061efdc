"""Groups whose commands are imported when they run, so that help loads neither numpy nor the solver."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_ATTRIBUTES = {"import": "import_plan"}  # a keyword names no function


class LazyGroup(click.Group):
    """A group whose commands are imported on use; their help texts are kept here.

    Parameters
    ----------
    lazy : mapping
        By the name of a command: the module that has a function of that name, and its help text.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, _ = self.lazy[cmd_name]
        command = getattr(import_module(module), _ATTRIBUTES.get(cmd_name, cmd_name))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.lazy.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # only a shell that completes pays for it

        named = [
            CompletionItem(name, help=text)
            for name, (_, text) in self.lazy.items()
            if name.startswith(incomplete)
        ]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.lazy and not name.startswith("-"):
            from difflib import get_close_matches  # a typo may pay for it

            near = get_close_matches(name, self.lazy, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Commands: {', '.join(self.lazy)}."
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)
