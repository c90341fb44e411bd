"""The client of a command, on the given database or on the embedded one."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from skep.cli.show import error_console
from skep.config import Config, display_database_url
from skep.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from skep import AsyncSkep, Skep


@contextmanager
def connect(database_url: str | None, data_dir: Path | None) -> "Generator[Skep]":
    """Yield a connected client; flags that are None are read from the environment."""
    from skep import Skep

    config = Config.load_client(database_url, data_dir)
    mq = Skep(config.database_url, data_dir=config.data_dir)
    try:
        with opening(config):
            mq.__enter__()
        yield mq
    finally:
        mq.close()


@asynccontextmanager
async def connect_async(config: Config, *, pool_size: int = 10, timeout_s: float = 30) -> "AsyncGenerator[AsyncSkep]":
    """Yield a connected client for commands that make several calls at once."""
    from skep import AsyncSkep

    mq = AsyncSkep(config.database_url, data_dir=config.data_dir, pool_size=pool_size, timeout=timeout_s)
    try:
        with opening(config):
            await mq.__aenter__()
        yield mq
    finally:
        await mq.close()


@contextmanager
def opening(config: Config) -> Generator[None]:
    """Show that the embedded PostgreSQL is starting; name the database in an error if it cannot be reached."""
    try:
        if config.database_url is None and error_console().is_terminal:
            with error_console().status("Starting the embedded PostgreSQL"):
                yield
        else:
            yield
    except DatabaseUnavailable as error:
        if config.database_url is None:
            raise
        from skep.engine.install import cannot_connect

        raise cannot_connect(config.database_url, error) from error


def database_name(config: Config) -> str:
    """Return the URL of the database without its password."""
    return "the embedded PostgreSQL" if config.database_url is None else display_database_url(config.database_url)
