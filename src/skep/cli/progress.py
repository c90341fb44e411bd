"""Progress bars, shown only on a terminal."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from skep.cli.show import error_console


@contextmanager
def progress(what: str, total: int) -> Generator[Callable[[int], None]]:
    """Yield a function that advances a progress bar. The bar disappears at the end."""
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    console = error_console()
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield partial(bar.advance, task)
