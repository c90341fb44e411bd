"""The runtime of the synchronous client."""

import threading
from collections.abc import Callable, Iterator

import pytest

from skep.client.sync import runtime


class Interrupted(list[Callable[[], None]]):
    """Functions of which only the first is submitted before Ctrl-C."""

    def __iter__(self) -> Iterator[Callable[[], None]]:
        yield self[0]
        raise KeyboardInterrupt


@pytest.mark.timeout(20)
def test_an_interrupt_while_the_threads_start():
    """Started threads are stopped, and the call returns."""
    ended = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        runtime.gather(Interrupted([lambda: assert_set(ended)]), ended.set)
    assert ended.is_set()


def assert_set(event: threading.Event) -> None:
    assert event.wait(10)
