"""`waltz completion`: the text that makes a shell complete this program's commands.

The text is click's own. It has the shell call `waltz` at each press of TAB, so it need not be
printed anew after an update.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "waltz"
VARIABLE = "_WALTZ_COMPLETE"
"""The variable by which click knows that a shell asks for words."""

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes a shell complete commands and options.

    \b
    bash  eval "$(waltz completion bash)" in ~/.bashrc
    zsh   eval "$(waltz completion zsh)" in ~/.zshrc, after compinit
    fish  waltz completion fish > ~/.config/fish/completions/waltz.fish

    The bash of macOS is too old for it: 4.4 or newer is needed.
    """
    from waltz.cli.commands import waltz

    found = get_completion_class(shell)
    assert found is not None  # click has all of `SHELLS`
    click.echo(found(waltz, {}, PROGRAM, VARIABLE).source())
