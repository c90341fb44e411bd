"""Measure how plain the prose is: `python -m tools.prose [--list] [FILE ...]`.

Two numbers over docstrings, comments, messages, help texts, dashboard texts and Markdown pages: the share of sentences
that open with a headless clause ("What is not acknowledged ..."), and riddle words per 1,000 words. psycopg has 0.1 %
and 0.5. The words and the targets are those of `docs/glossary.md`.
"""

import argparse
import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MOST_OPENERS = 0.005  # of the sentences
MOST_RIDDLES = 1.0  # per 1,000 words
LEAST_WORDS = 4  # in a string literal that counts as prose
OPENER = re.compile(r"(?:What|Who|Whoever|Whatever|Nobody|Those|Where)\b", re.ASCII)
RIDDLES = ("whoever", "nobody", "anew", "(?:is|are|was|were) told", "so many", "what is not", "but by", "(?-i:is none)")
RIDDLE = re.compile(rf"\b(?:{'|'.join(RIDDLES)})\b", re.IGNORECASE)
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\"'(])")
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")


class Text(NamedTuple):
    """One piece of prose and where it stands."""

    path: Path
    line: int
    text: str


@dataclass
class Measure:
    """What was counted in some texts."""

    sentences: int = 0
    words: int = 0
    openers: int = 0
    riddles: int = 0

    def add(self, sentence: str) -> bool:
        """Count a sentence, and tell whether it could be plainer."""
        words = len(WORD.findall(sentence))
        if words == 0:
            return False
        opens = OPENER.match(sentence.lstrip("`*\"'( ")) is not None and not sentence.endswith("?")
        riddles = len(RIDDLE.findall(sentence))
        self.sentences += 1
        self.words += words
        self.openers += opens
        self.riddles += riddles
        return opens or riddles > 0

    @property
    def opener_share(self) -> float:
        return self.openers / max(self.sentences, 1)

    @property
    def riddles_per_thousand(self) -> float:
        return 1000 * self.riddles / max(self.words, 1)


def _python(path: Path) -> Iterator[Text]:
    source = path.read_text()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_prose(node.value):
            yield Text(path, node.lineno, node.value)
    with path.open("rb") as file:
        comments = [t for t in tokenize.tokenize(file.readline) if t.type == tokenize.COMMENT]
    yield from _joined(path, [(token.start[0], token.string.lstrip("#")) for token in comments])


def _sql(path: Path) -> Iterator[Text]:
    lines = path.read_text().splitlines()
    comments = [(n, line.partition("--")[2]) for n, line in enumerate(lines, 1) if "--" in line]
    yield from _joined(path, comments)
    for n, line in enumerate(lines, 1):
        for literal in re.findall(r"'((?:[^']|'')*)'", line.partition("--")[0]):
            if _is_prose(literal):
                yield Text(path, n, literal)


def _script(path: Path) -> Iterator[Text]:
    lines = path.read_text().splitlines()
    yield from _joined(path, [(n, line.partition("//")[2]) for n, line in enumerate(lines, 1) if "// " in line])
    for n, line in enumerate(lines, 1):
        for literal in re.findall(r">([^<>{}$]+)<|\"([^\"]+)\"|'([^']+)'", line):
            text = "".join(literal)
            if _is_prose(text):
                yield Text(path, n, text)


def _markdown(path: Path) -> Iterator[Text]:
    text = re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), path.read_text(), flags=re.DOTALL)
    line = 1
    for paragraph in re.split(r"(\n\s*\n|\n(?=[-*|#]))", text):
        if paragraph.strip():
            yield Text(path, line, re.sub(r"^[#>|*\- ]+|\|", " ", paragraph).strip())
        line += paragraph.count("\n")


def _joined(path: Path, lines: list[tuple[int, str]]) -> Iterator[Text]:
    """Join the comments of consecutive lines."""
    block: list[str] = []
    first = last = 0
    for number, text in [*lines, (0, "")]:
        if block and number != last + 1:
            yield Text(path, first, " ".join(block))
            block = []
        if not block:
            first = number
        block.append(text.strip())
        last = number


def _is_prose(text: str) -> bool:
    return len(WORD.findall(text)) >= LEAST_WORDS and " " in text.strip() and "SELECT" not in text


READERS = {".py": _python, ".sql": _sql, ".js": _script, ".md": _markdown}


def tracked() -> list[Path]:
    """Return the files whose prose counts."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [
        ROOT / name
        for name in listed.stdout.splitlines()
        if Path(name).suffix in READERS and name not in {"src/skep/engine/schema.sql", "tools/prose.py"}
    ]


def texts(path: Path) -> Iterator[Text]:
    yield from READERS[path.suffix](path)


def _area(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:3] if parts[0] == "src" else parts[:1]) if len(parts) > 1 else "pages"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--list", action="store_true", help="print each sentence that could be plainer")
    arguments = parser.parse_args()
    total, areas = Measure(), dict[str, Measure]()
    for path in [file.resolve() for file in arguments.files] or tracked():
        area = areas.setdefault(_area(path), Measure())
        for text in texts(path):
            for sentence in SENTENCE.split(" ".join(text.text.split())):
                total.add(sentence)
                if area.add(sentence) and arguments.list:
                    print(f"{path.relative_to(ROOT)}:{text.line}: {sentence}")
    if arguments.list or arguments.files:
        for name, area in sorted(areas.items()):
            print(f"{name:28} {area.opener_share:6.2%}  {area.riddles_per_thousand:5.2f}  {area.words:7} words")
    print(
        f"prose: {total.opener_share:.2%} headless sentences, {total.riddles_per_thousand:.2f} riddle words per 1,000"
    )
    return int(total.opener_share > MOST_OPENERS or total.riddles_per_thousand > MOST_RIDDLES)


if __name__ == "__main__":
    sys.exit(main())
