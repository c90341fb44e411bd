"""Write `skep.client.sync` from `skep.client.aio`: the same code without async and await.

python -m tools.make_sync            write the files
python -m tools.make_sync --check    exit 1 and name the files that are not what they should be
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parent.parent / "src/skep/client"
BY_HAND = {"__init__.py", "runtime.py"}  # written twice
FIRST_LINE = "# Generated from {source} by `make format`. Change that file.\n"

WORDS = {
    "aio": "sync",
    "asynccontextmanager": "contextmanager",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "StopAsyncIteration": "StopIteration",
}


def translate(text: str) -> str:
    """Drop `async` and `await`, and the Async of names; in texts and comments too, which speak of the same names."""
    text = re.sub(r"\b(?:async|await) ", "", text)
    text = re.sub(r"\bAsync(?=[A-Z])", "", text)
    return re.sub(r"\w+", lambda word: WORDS.get(word[0], word[0]), text)


def generate() -> dict[Path, str]:
    """Return what each file of the synchronous face should hold."""
    wanted: dict[Path, str] = {}
    for source in sorted((CLIENT / "aio").glob("*.py")):
        if source.name not in BY_HAND:
            first_line = FIRST_LINE.format(source=source.relative_to(CLIENT.parent.parent.parent))
            wanted[CLIENT / "sync" / source.name] = _format(first_line + translate(source.read_text()))
    return wanted


def _format(text: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    for step in (["check", "--select", "I", "--fix", "--quiet"], ["format"]):
        command = [*ruff, *step, "--stdin-filename", "src/skep/client/sync/file.py", "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> int:
    wanted = generate()
    known = {path for path in (CLIENT / "sync").glob("*.py") if path.name not in BY_HAND}
    stale = [path for path, text in wanted.items() if path not in known or path.read_text() != text]
    orphans = known - wanted.keys()
    if "--check" in sys.argv:
        for path in [*stale, *sorted(orphans)]:
            print(f"{path.relative_to(Path.cwd())} is not what skep.client.aio makes of it; run: make format")
        return 1 if stale or orphans else 0
    for path in stale:
        path.write_text(wanted[path])
    for path in orphans:
        path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
