"""The SQL files of the engine, as they are read."""

from pathlib import Path

import pytest

from skep.engine.sources import Sources, SqlFile, packaged


def write(directory: Path, *names: str) -> Path:
    directory.mkdir()
    for name in names:
        (directory / name).write_text(f"SELECT '{name}';")
    return directory


def test_the_package_ships_its_sql():
    assert "CREATE SCHEMA skep" in packaged().bootstrap.sql
    assert [migration.number for migration in packaged().migrations] == list(range(1, packaged().version + 1))


def test_files_are_read_in_order(tmp_path: Path):
    migrations = write(tmp_path / "migrations", "0002_add_colour.sql", "0001_create_thing.sql")
    functions = write(tmp_path / "functions", "20_pop.sql", "10_push.sql", "notes.md")
    sources = Sources.read(migrations, functions)
    assert [file.name for file in sources.migrations] == ["0001_create_thing", "0002_add_colour"]
    assert [file.name for file in sources.functions] == ["10_push", "20_pop"]
    assert sources.version == 2


@pytest.mark.parametrize(
    ("migrations", "functions", "says"),
    [
        (["0001_one.sql", "0003_three.sql"], [], "without a gap"),
        (["0001_one.sql", "0001_two.sql"], [], "without a gap"),
        (["1_one.sql"], [], "1_one.sql"),
        ([], ["push.sql"], "push.sql"),
    ],
)
def test_misnamed_files_are_refused(tmp_path: Path, migrations: list[str], functions: list[str], says: str):
    with pytest.raises(ValueError, match=says):
        Sources.read(write(tmp_path / "migrations", *migrations), write(tmp_path / "functions", *functions))


def test_a_position_becomes_a_line():
    file = SqlFile("10_push", "SELECT 1;\nSELECT 2;\n")
    assert file.locate("1") == "in 10_push.sql, line 1"
    assert file.locate("11") == "in 10_push.sql, line 2"
    assert file.locate(None) == "in 10_push.sql, line ?"


def test_renaming_or_editing_functions_changes_their_checksum(tmp_path: Path):
    none = tmp_path / "none"
    checksums = {
        Sources.read(none, write(tmp_path / "a", "10_push.sql")).functions_checksum,
        Sources.read(none, write(tmp_path / "b", "20_push.sql")).functions_checksum,
        Sources.read(none, none).functions_checksum,
    }
    assert len(checksums) == 3
