"""A terminal that is drawn on as a whole, and given back as it was."""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live


class WholeTerminal:
    """Draws anew when the size changes, and calls `quit_` on q. While Ctrl-Z stops it, the terminal is as before."""

    def __init__(self, console: Console, quit_: Callable[[], object]) -> None:
        self._live = Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")
        self._quit = quit_
        self._keyboard = sys.stdin
        self._before: list[Any] | None = None

    def draw(self, picture: RenderableType) -> None:
        self._live.update(picture, refresh=True)

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._take()
        loop.add_signal_handler(signal.SIGWINCH, self._live.refresh)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        if self._before is not None:
            loop.add_reader(self._keyboard, self._read_key)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            asyncio.get_running_loop().remove_reader(self._keyboard)
        self._give_back()

    def _take(self) -> None:
        if self._keyboard.isatty():
            self._before = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        self._live.start(refresh=True)

    def _give_back(self) -> None:
        self._live.stop()
        if self._before is not None:
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._before)

    def _suspend(self) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()

    def _read_key(self) -> None:
        if os.read(self._keyboard.fileno(), 1) in (b"q", b"Q", b""):
            self._quit()
