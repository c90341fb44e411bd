"""The client of a command: on the database that is named, else on the embedded one."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from skep import AsyncSkep, Skep
from skep.cli.report import errors
from skep.config import Config, display_database_url
from skep.engine.install import cannot_connect
from skep.errors import DatabaseUnavailable


@contextmanager
def connect(config: Config) -> Generator[Skep]:
    mq = Skep(config.database_url, data_dir=config.data_dir)
    try:
        with opening(config):
            mq.__enter__()
        yield mq
    finally:
        mq.close()


@asynccontextmanager
async def client(config: Config, *, pool_size: int = 10, patience: float = 30) -> AsyncGenerator[AsyncSkep]:
    """For commands that do several things at once."""
    mq = AsyncSkep(config.database_url, data_dir=config.data_dir, pool_size=pool_size, timeout=patience)
    try:
        with opening(config):
            await mq.__aenter__()
        yield mq
    finally:
        await mq.close()


@contextmanager
def opening(config: Config) -> Generator[None]:
    """Say what takes its time, and which database it is that cannot be reached."""
    try:
        if config.database_url is None and errors.is_terminal:
            with errors.status("Starting the embedded PostgreSQL"):
                yield
        else:
            yield
    except DatabaseUnavailable as error:
        if config.database_url is None:
            raise
        raise cannot_connect(config.database_url, error) from error


def place(config: Config) -> str:
    """Say which database it is."""
    return "the embedded PostgreSQL" if config.database_url is None else display_database_url(config.database_url)
