"""The published Queen clients, each version in an environment of its own, made once and kept beside ours."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON_VERSIONS = ("0.15.0", "2.6.0")
UV = Path(sys.executable).with_name("uv")


def queen_python(version: str) -> Path:
    """Return a Python that has this version of `queen-mq`; where it cannot be had skip, or fail if SKEP_TEST_ALL=1."""
    home = Path(sys.prefix) / f"queen-{version}"
    python, ready = home / "bin" / "python", home / "ready"
    with (Path(sys.prefix) / "queen.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes run side by side
        if not ready.exists():
            _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(home))
            _uv("pip", "install", "--quiet", "--python", str(python), f"queen-mq=={version}")
            ready.touch()
    return python


def _uv(*arguments: str) -> None:
    done = subprocess.run([UV, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing(f"the Queen client cannot be installed:\n{done.stderr.strip()}")


def missing(what: str) -> None:
    if os.environ.get("SKEP_TEST_ALL") == "1":
        pytest.fail(f"{what} (and SKEP_TEST_ALL=1)")
    pytest.skip(what)
