"""What the synchronous client is built on: threads that end."""

import threading
from collections.abc import Callable, Iterator

import pytest

from skep.client.sync import runtime


class Interrupted(list[Callable[[], None]]):
    """Works of which only the first is reached before Ctrl-C."""

    def __iter__(self) -> Iterator[Callable[[], None]]:
        yield self[0]
        raise KeyboardInterrupt


@pytest.mark.timeout(20)
def test_an_interrupt_while_the_threads_start():
    """Those that have started are stopped; nobody waits for them for ever."""
    ended = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        runtime.gather(Interrupted([lambda: assert_set(ended)]), ended.set)
    assert ended.is_set()


def assert_set(event: threading.Event) -> None:
    assert event.wait(10)
