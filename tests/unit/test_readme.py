"""The documents say what is true: their blocks, commands, targets, settings and links.

`tests/readme.py` has the convention for blocks; tests/e2e runs those of README.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from streams.cli import headwater
from streams.events import decode_record
from streams.settings import load_settings
from tests.readme import KINDS, ROOT, Block, blocks_of, matches

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("infra/**/*.md")])
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in DOCUMENTS}


def all_blocks(*kinds: str) -> list[tuple[str, Block]]:
    return [
        (name, block)
        for name, text in TEXTS.items()
        for block in blocks_of(text)
        if block.kind in kinds
    ]


@pytest.mark.parametrize("name", TEXTS)
def test_every_block_says_how_it_is_tested(name: str) -> None:
    for block in blocks_of(TEXTS[name]):
        where = f"{name}:{block.line}"
        if not block.kind:
            assert block.language in ("", "text"), f"{where}: a comment `test: …` is missing"
        else:
            assert block.kind in KINDS, f"{where}: there is no test of kind {block.kind!r}"
            assert block.language in KINDS[block.kind], f"{where}: {block.kind} {block.language!r}"
            assert bool(block.note) == (block.kind == "none"), f"{where}: say why, for none only"


def test_an_output_follows_what_prints_it() -> None:
    for name, text in TEXTS.items():
        before = ""
        for block in blocks_of(text):
            assert block.kind != "output" or before == "run", f"{name}:{block.line}"
            before = block.kind


def test_settings_blocks_are_valid(tmp_path: Path) -> None:
    for name, block in all_blocks("settings"):
        config = tmp_path / "headwater.toml"
        config.write_text(block.text, encoding="utf-8")
        assert load_settings(config, {}, tmp_path), f"{name}:{block.line}"


def test_event_blocks_are_events() -> None:
    for _, block in all_blocks("events"):
        for line in block.text.splitlines():
            assert decode_record(line.encode())


# -- commands --------------------------------------------------------------------------------------

_COMMAND = re.compile(r"(?:^|[`(;&|$]|\s)headwater ((?:[a-z][a-z-]*[ `]?)+)")
# After these words stands an English sentence, no command.
_WORDS = re.compile(r"`[^`\n]+`")


def named_commands(text: str) -> Iterator[list[str]]:
    """The words after `headwater` in code: in backticks, and in fences."""
    code = [block.text for block in blocks_of(text)]
    code += [span[1:-1] for span in _WORDS.findall(re.sub(r"```.*?```", "", text, flags=re.S))]
    for part in code:
        for line in part.splitlines():
            for found in _COMMAND.findall(line.split("  #")[0]):
                yield found.strip(" `").split()


@pytest.mark.parametrize("name", TEXTS)
def test_commands_in_the_documents_exist(name: str) -> None:
    for words in named_commands(TEXTS[name]):
        command: click.Command = headwater
        for word in words:
            if not isinstance(command, click.Group):
                break
            known = command.list_commands(click.Context(command))
            assert word in known, f"{name}: headwater {' '.join(words)}"
            found = command.get_command(click.Context(command), word)
            assert found is not None
            command = found


@pytest.mark.parametrize("name", TEXTS)
def test_make_targets_in_the_documents_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", TEXTS[name], re.MULTILINE))
    assert named <= targets


@pytest.mark.parametrize("name", TEXTS)
def test_settings_in_the_documents_exist(name: str) -> None:
    plain = {"HEADWATER_HOME", "HEADWATER_CONFIG", "HEADWATER_FEATURE_REPO", "HEADWATER_FAULT"}
    settings = load_settings(None, {}, Path("/nonexistent"))
    for variable in set(re.findall(r"HEADWATER_[A-Z_]+", TEXTS[name])) - plain:
        section, _, key = variable.removeprefix("HEADWATER_").lower().partition("__")
        if section == "section":
            continue  # HEADWATER_SECTION__KEY, the pattern itself
        assert hasattr(getattr(settings, section, None), key), f"{name}: {variable}"


@pytest.mark.parametrize("name", TEXTS)
def test_links_to_files_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", TEXTS[name]):
        if "://" not in target and not target.startswith("mailto:"):
            assert (ROOT / name).parent.joinpath(target).exists(), f"{name}: {target}"


@pytest.mark.parametrize("name", TEXTS)
def test_paths_in_backticks_exist(name: str) -> None:
    """`streams/events.py` and the like, without placeholders."""
    pattern = r"`((?:streams|encoders|infra|feature_repo|tests|requirements)/[\w./-]*)`"
    for target in re.findall(pattern, TEXTS[name]):
        assert (ROOT / target).exists(), f"{name}: {target}"


# -- the convention itself -------------------------------------------------------------------------


def test_blocks_are_found_with_their_comment() -> None:
    text = (
        "text\n\n<!-- test: run -->\n```bash\necho a\n```\n\n"
        "1. item\n   <!-- test: none, it is an example -->\n   ```toml\n   a = 1\n   ```\n"
        "```\nx\n```\n"
    )
    assert list(blocks_of(text)) == [
        Block("run", "", "bash", "echo a\n", 4),
        Block("none", "it is an example", "toml", "a = 1\n", 10),
        Block("", "", "", "x\n", 13),
    ]


@pytest.mark.parametrize("text", ["<!-- test: run -->\nno fence\n", "```bash\necho\n"])
def test_a_block_without_an_end_or_a_comment_without_a_block_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="fence"):
        list(blocks_of(text))


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("a\nb", "x\na\nb\ny\n", True),
        ("a …\nb", "a 17 s\nb\n", True),
        ("a\nc", "a\nb\nc\n", False),
        ("a.c", "abc", False),
    ],
)
def test_outputs_are_compared_line_by_line(expected: str, output: str, same: bool) -> None:
    assert matches(expected, output) == same


def test_commands_are_found_in_code_only() -> None:
    text = "headwater is great, `headwater get alice` is too.\n"
    text += "```\nheadwater up && headwater apply  # headwater down\n```\n"
    assert list(named_commands(text)) == [["up"], ["apply"], ["get", "alice"]]
