"""Full-screen drawing on a terminal, which is restored at the end."""

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


class FullScreen:
    """Redraws when the terminal is resized, and calls `quit_` on q. Ctrl-Z restores the terminal while suspended."""

    def __init__(self, console: Console, quit_: Callable[[], object]) -> None:
        self._live = Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")
        self._quit = quit_
        self._keyboard = sys.stdin
        self._settings: list[Any] | None = None

    def draw(self, picture: RenderableType) -> None:
        self._live.update(picture, refresh=True)

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._start()
        loop.add_signal_handler(signal.SIGWINCH, self._live.refresh)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        if self._settings is not None:
            loop.add_reader(self._keyboard, self._read_key)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._settings is not None:
            asyncio.get_running_loop().remove_reader(self._keyboard)
        self._restore()

    def _start(self) -> None:
        if self._keyboard.isatty():
            self._settings = termios.tcgetattr(self._keyboard)
            tty.setcbreak(self._keyboard)
        self._live.start(refresh=True)

    def _restore(self) -> None:
        self._live.stop()
        if self._settings is not None:
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._settings)

    def _suspend(self) -> None:
        self._restore()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._start()

    def _read_key(self) -> None:
        if os.read(self._keyboard.fileno(), 1) in (b"q", b"Q", b""):
            self._quit()
