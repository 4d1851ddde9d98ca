"""How the documents' blocks are tested: a comment right before a fence says what to do with it.

    <!-- test: run -->                 run it (bash or python); exit code 0. Blocks run in the order
                                       of the document, in one folder, against one local stack.
                                       What a block leaves running with `&` ends with the document.
    <!-- test: output -->              what the block before has printed; `…` stands for anything
    <!-- test: settings -->            a headwater.toml that is valid (toml)
    <!-- test: events -->              one event a line that a worker takes (json)
    <!-- test: none, REASON -->        not tested, and why

A fence without a language, or with `text`, needs no comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
KINDS = {
    "run": ("bash", "python"),
    "output": ("", "text", "json"),
    "settings": ("toml",),
    "events": ("json",),
    "none": ("bash", "python", "toml", "json", "yaml", "sql", "promql"),
}
_MARKER = re.compile(r"<!-- test: (?P<kind>\w+)(?:, (?P<note>.+))? -->")
_FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*) *$")


class Block(NamedTuple):
    """One fenced block; `kind` "" means that no comment is before it."""

    kind: str
    note: str
    language: str
    text: str
    line: int


def blocks_of(document: str) -> Iterator[Block]:
    """The fenced blocks of a Markdown text. Raises ValueError for a fence that doesn't end."""
    lines = iter(enumerate(document.splitlines(), 1))
    kind = note = ""
    for number, line in lines:
        if marker := _MARKER.fullmatch(line.strip()):
            kind, note = marker["kind"], marker["note"] or ""
        elif fence := _FENCE.fullmatch(line):
            text = _until_closed(lines, len(fence["indent"]), number)
            yield Block(kind, note, fence["language"], text, number)
            kind = note = ""
        elif line.strip() and kind:
            raise ValueError(f"line {number}: a fence must follow the comment before it")


def _until_closed(lines: Iterator[tuple[int, str]], indent: int, start: int) -> str:
    text = ""
    for _, line in lines:
        if line.strip() == "```":
            return text
        text += line[indent:] + "\n"
    raise ValueError(f"line {start}: the fence doesn't end")


def matches(expected: str, output: str) -> bool:
    """Whether the lines are in the output, one after the other; `…` stands for anything."""
    lines = [re.escape(line.rstrip()).replace("…", ".*") for line in expected.strip().splitlines()]
    pattern = r"\s*\n".join(lines)
    return re.search(pattern, output) is not None
