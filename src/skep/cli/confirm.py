"""Confirmation of commands that delete or change something for good."""

import sys

from skep.cli.show import error_console
from skep.errors import SkepError


def confirm(question: str, done: str = "deleted") -> None:
    """Ask on standard error, and raise an error unless the reply is yes."""
    errors = error_console()
    errors.print(f"{question} [y/N] ", end="", markup=False)
    reply = sys.stdin.readline()
    if not reply.endswith("\n"):
        errors.print()
    if reply.strip().lower() not in ("y", "yes"):
        raise SkepError(f"nothing was {done}", hint="reply y, or pass --yes")
