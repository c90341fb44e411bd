"""The rules of the house that no linter holds: sizes, public names, and nothing of this machine in the repository."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest

import skep

ROOT = Path(__file__).parents[2]
PYTHON = sorted((ROOT / "src").rglob("*.py"))
SCHEMA = ROOT / "src/skep/engine/schema.sql"  # generated
SQL = sorted(path for path in (ROOT / "src").rglob("*.sql") if path != SCHEMA)
SQL_ROUTINE = re.compile(
    r"^CREATE [\w ]*?(?:FUNCTION|PROCEDURE) ([\w.]+).*?\$(\w*)\$.*?\$\2\$", re.DOTALL | re.MULTILINE
)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_all_is_what_is_public():
    assert all(getattr(skep, name) for name in skep.__all__)  # loads them
    public = {name for name, value in vars(skep).items() if name[0] != "_" and not isinstance(value, ModuleType)}
    assert public == {name for name in skep.__all__ if name[0] != "_"}
    assert list(skep.__all__) == sorted(skep.__all__)


@pytest.mark.parametrize("path", [*PYTHON, *SQL], ids=relative)
def test_a_file_has_400_lines_at_most(path: Path):
    most = 800 if path.parent.name == "migrations" else 400  # the one migration is the whole schema
    assert len(path.read_text().splitlines()) <= most


def test_no_file_has_banners():
    banner = re.compile(r"^\s*(?:#|--) ?[-=*]{3,}", re.MULTILINE)
    assert [relative(path) for path in [*PYTHON, *SQL] if banner.search(path.read_text())] == []


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_a_python_function_has_50_lines_at_most(path: Path):
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    sizes = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions}
    assert {name: size for name, size in sizes.items() if size > 50} == {}


@pytest.mark.parametrize("path", SQL, ids=relative)
def test_a_sql_function_has_80_lines_at_most(path: Path):
    sizes = {found[1]: found[0].count("\n") + 1 for found in SQL_ROUTINE.finditer(path.read_text())}
    assert {name: size for name, size in sizes.items() if size > 80} == {}


ENGINE = ROOT / "src/skep/engine"


@pytest.mark.parametrize("path", [path for path in SQL if ENGINE in path.parents], ids=relative)
def test_a_sql_line_has_120_columns_at_most(path: Path):
    lines = enumerate(path.read_text().splitlines(), start=1)
    assert [number for number, line in lines if len(line) > 120] == []


def statements(sql: str) -> Iterator[str]:
    """Return the statements of a file, those inside functions one by one. A list of columns is no statement."""
    text = re.sub(r"--.*", "", sql)
    for part in re.split(r";|\$\w*\$|\b(?:BEGIN|THEN|ELSE|LOOP|DECLARE)$", text, flags=re.MULTILINE):
        if not re.match(r"CREATE (?:UNLOGGED )?(?:TABLE|TYPE)\b", part.strip()):
            yield part.strip()


@pytest.mark.parametrize("path", SQL, ids=relative)
def test_a_sql_statement_has_40_lines_at_most(path: Path):
    sizes = [(part.splitlines()[0], part.count("\n") + 1) for part in statements(path.read_text()) if part]
    assert [(first, size) for first, size in sizes if size > 40] == []


def test_no_file_names_a_registry():
    hosts = {".".join(parts) for parts in REGISTRIES} | machine_registries()
    found = [(path, host) for path in repository_files() for host in hosts if host in read(path)]
    assert found == []


def test_no_lock_file_is_kept():
    names = {Path(path).name for path in repository_files()}
    assert names & {"uv.lock", "pylock.toml", "package-lock.json", "yarn.lock", "poetry.lock"} == set()


# In pieces, so that this file does not name them.
REGISTRIES = [
    ("pypi", "org"),
    ("files", "pythonhosted", "org"),
    ("registry", "npmjs", "org"),
    ("registry", "yarnpkg", "com"),
    ("download", "pytorch", "org"),
    ("repo", "maven", "apache", "org"),
    ("jfrog", "io"),
    ("pkg", "dev"),
]


def repository_files() -> list[str]:
    """Return the files that are tracked or would be by `git add`."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in listing.splitlines() if (ROOT / path).is_file()]


def read(path: str) -> str:
    return (ROOT / path).read_text(errors="ignore")


def machine_registries() -> set[str]:
    """Return the hosts of the registries this machine is set up for, as the tools' settings name them."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    )
    settings = [
        listing.stdout,
        *(value for name, value in os.environ.items() if re.match(r"(PIP|UV|NPM)_", name, re.IGNORECASE)),
    ]
    hosts = {urlsplit(url).hostname for text in settings for url in re.findall(r"https?://[^\s'\"]+", text)}
    return {host for host in hosts if host and host not in {"localhost", "127.0.0.1"}}
