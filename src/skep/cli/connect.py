"""The client of a command: on the database that is named, else on the embedded one."""

from collections.abc import Generator
from contextlib import contextmanager

from skep import Skep
from skep.cli.report import errors
from skep.config import Config
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
