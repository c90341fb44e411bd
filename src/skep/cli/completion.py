"""`skep completion`: print the completion script of a shell. The scripts call `skep` with `_SKEP_COMPLETE` set."""

import os
from typing import Annotated, Literal

import typer

# Typer can only add these as options of the whole program, next to `--help`.
from typer.completion import completion_init, get_completion_script  # pyright: ignore[reportPrivateImportUsage]

VARIABLE = "_SKEP_COMPLETE"


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="Your shell.", show_default=False)
    ],
) -> None:
    """Print a shell script that completes commands, options, and the names of queues and groups."""
    print(get_completion_script(prog_name="skep", complete_var=VARIABLE, shell=shell))


def register_shells() -> None:
    """Register the completion of the shells if a completion script called this process."""
    if VARIABLE in os.environ:
        completion_init()
