"""`skep completion`: scripts for shells. They ask `skep` itself, which answers when this variable says so."""

import os

# Typer offers them as options of the whole program only, beside `--help`.
from typer.completion import completion_init, get_completion_script  # pyright: ignore[reportPrivateImportUsage]

VARIABLE = "_SKEP_COMPLETE"


def run(shell: str) -> None:
    print(get_completion_script(prog_name="skep", complete_var=VARIABLE, shell=shell))


def answer_shells() -> None:
    """Know how to answer the shells, if one of them asks."""
    if VARIABLE in os.environ:
        completion_init()
