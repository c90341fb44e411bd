"""How far long work has come, on a terminal."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from skep.cli.report import errors


@contextmanager
def progress(what: str, total: int) -> Generator[Callable[[int], None]]:
    """Give what is told how much more is done; the bar goes away at the end."""
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield partial(bar.advance, task)
