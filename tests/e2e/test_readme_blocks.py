"""README.md runs: its blocks, in order, against a real stack (the convention: tests/readme.py)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.stack import LocalStack
from tests.readme import ROOT, Block, blocks_of, matches
from tests.worker_platform import wait_until

_BLOCK_SECONDS = 120
_STOP_SECONDS = 30
BLOCKS = [b for b in blocks_of((ROOT / "README.md").read_text("utf-8")) if b.kind != "none"]


class Shell:
    """Runs blocks in one folder; each in a process group of its own, which ends with the test."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._groups: list[subprocess.Popen[bytes]] = []

    def run(self, block: Block) -> tuple[int, str]:
        """(exit code, what it printed). What the block leaves running doesn't hold it up."""
        program = ["bash", "-euo", "pipefail"] if block.language == "bash" else [sys.executable]
        script = self._folder / f"block-{block.line}"
        script.write_text(block.text, encoding="utf-8")
        printed = script.with_suffix(".out")
        with printed.open("wb") as out:
            process = subprocess.Popen(
                [*program, str(script)],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._groups.append(process)
        code = process.wait(_BLOCK_SECONDS)
        return code, printed.read_text("utf-8", "replace")

    def close(self) -> None:
        """End what blocks left running, the way a user's Ctrl-C or a closed terminal would."""
        deadline = time.monotonic() + _STOP_SECONDS
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._groups:
                _signal(process, number)
            while any(_signal(process, 0) for process in self._groups):
                if number == signal.SIGKILL or time.monotonic() > deadline:
                    break
                time.sleep(0.1)


def _signal(process: subprocess.Popen[bytes], number: int) -> bool:
    """False if nothing of the group is left."""
    process.poll()
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def shell(local_stack: LocalStack, tmp_path: Path) -> Iterator[Shell]:
    shutil.copytree(ROOT / "feature_repo", tmp_path / "feature_repo")
    commands = tmp_path / "bin"
    commands.mkdir()
    headwater = commands / "headwater"
    headwater.write_text(f'#!/bin/sh\nexec {sys.executable} -m streams.cli "$@"\n')
    headwater.chmod(0o755)
    environment = local_stack.environment | {
        "PATH": f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "100",
    }
    shell = Shell(tmp_path, environment)
    yield shell
    shell.close()


def test_the_blocks_of_the_readme_run(shell: Shell) -> None:
    printed = ""
    for block in BLOCKS:
        where = f"README.md:{block.line}"
        if block.kind == "run":
            code, printed = shell.run(block)
            assert code == 0, f"{where}: exit code {code}\n{printed}"
        elif block.kind == "output":
            assert matches(block.text, printed), f"{where}: printed instead:\n{printed}"


def test_what_a_block_leaves_running_ends_with_the_document(tmp_path: Path) -> None:
    shell = Shell(tmp_path, dict(os.environ))
    code, printed = shell.run(Block("run", "", "bash", "sleep 600 &\necho $!\n", 1))
    assert code == 0
    running = Path(f"/proc/{int(printed)}/cmdline")
    # Between fork and exec it is still the shell's name, or none.
    wait_until(lambda: running.read_bytes().startswith(b"sleep"), 10, "sleep is running")
    shell.close()
    assert not running.exists() or not running.read_bytes()


def test_a_block_fails_at_its_first_failing_command(tmp_path: Path) -> None:
    shell = Shell(tmp_path, dict(os.environ))
    assert shell.run(Block("run", "", "bash", "false | true\necho on\n", 1)) == (1, "")
    assert shell.run(Block("run", "", "python", "print(6 * 7)\n", 2)) == (0, "42\n")
    shell.close()
