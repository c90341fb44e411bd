"""Asking before something is lost."""

import sys

from skep.cli.report import errors
from skep.errors import SkepError


def confirm(question: str, done: str = "deleted") -> None:
    """Go on only after a yes. Standard output stays clean: it may be read by a program."""
    errors.print(f"{question} [y/N] ", end="", markup=False)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        errors.print()
    if answer.strip().lower() not in ("y", "yes"):
        raise SkepError(f"nothing was {done}", hint="answer y, or say --yes")
