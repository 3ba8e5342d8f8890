"""`python -m tests.states`: play all states on one cluster of processes, and print the table."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tests.live.launch import run_directory
from tests.states.play import play
from tests.states.table import STATES
from tests.states.world import running_world


@click.command()
@click.option("--only", help="States whose names have this in them.")
@click.option("--directory", type=click.Path(path_type=Path), help="Keep all files here.")
def main(only: str | None, directory: Path | None) -> None:
    chosen = [state for state in STATES if only is None or only in state.name]
    failed = 0
    with run_directory(directory, "states") as files:
        with running_world(files.path / "world") as world:
            for state in chosen:
                played = play(world, state)
                failed += bool(played.wrong)
                verdict = "FALSE" if played.wrong else "true"
                click.echo(
                    f"{verdict:5}  {played.questions:3} questions  {played.seconds:5.0f} s"
                    f"  {played.name}"
                )
                for text in played.wrong:
                    click.echo(f"       {text}")
                sys.stdout.flush()
        files.is_kept = failed > 0
    click.echo(f"{len(chosen)} states, {failed} with something that is not so")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
