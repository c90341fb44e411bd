"""The command line in this process, on a database for each test."""

import contextlib
import io
import json
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import pytest

from skep import Skep
from skep.cli import main
from tests.cli.process import UNSET


@dataclass(frozen=True)
class Result:
    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


Cli = Callable[..., Result]


@pytest.fixture
def cli(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Return a function that runs `skep` with arguments and standard input."""
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SKEP_DATABASE_URL", database_url)

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["skep", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                main()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
        return Result(code, out.getvalue(), err.getvalue())

    return run


@pytest.fixture
def mq(database_url: str) -> Generator[Skep]:
    with Skep(database_url) as client:
        yield client
