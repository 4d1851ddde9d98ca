"""`make setup`: from a bare Python 3.11 to all that the project runs with.

Five steps, each with a stamp of what it depends on, so that a second run skips it: uv, the main
environment, the project itself, Triton's environment, the jars. Everything lies in `.venv` and
`.headwater-cache`. Runs with the standard library alone, before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
CACHE = ROOT / ".headwater-cache"
LOCKS = ROOT / "requirements"
UV = CACHE / "tools" / "bin" / "uv"
JAR_LOCK = ROOT / "infra" / "local" / "jars.lock"
PYTHON_VERSION = (3, 11)
GLIBC_VERSION = (2, 35)
_FREE_GIB = 12
_HEARTBEAT_SECONDS = 15


class SetupError(Exception):
    """A sentence that says what to do."""


@dataclass(frozen=True)
class Step:
    """`inputs` are files: when one changes, `run` is done again. `proof` must exist afterwards."""

    name: str
    inputs: tuple[Path, ...]
    proof: Path
    run: Callable[[], None]

    @property
    def stamp(self) -> Path:
        return CACHE / "stamps" / self.name.replace(" ", "-")

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{ROOT} {sys.version} {sys.base_prefix}".encode())
        for path in self.inputs:
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def is_done(self) -> bool:
        return (
            self.proof.exists()
            and self.stamp.is_file()
            and self.stamp.read_text(encoding="utf-8") == self.fingerprint()
        )


def steps() -> list[Step]:
    """In order; each may use what the earlier ones made."""
    dev, triton = LOCKS / "dev.lock", LOCKS / "triton.lock"
    return [
        Step("uv", (LOCKS / "uv.lock",), UV, install_uv),
        Step("main environment", (dev,), VENV / "bin" / "python", lambda: environment(VENV, dev)),
        Step(
            "headwater itself",
            (dev, ROOT / "pyproject.toml"),
            VENV / "bin" / "headwater",
            install_project,
        ),
        Step(
            "Triton environment",
            (triton,),
            CACHE / "triton" / "bin" / "python",
            lambda: environment(CACHE / "triton", triton),
        ),
        Step("Kafka and Cassandra jars", (JAR_LOCK,), CACHE / "jars", fetch_jars),
    ]


def install_uv() -> None:
    folder = CACHE / "tools"
    shutil.rmtree(folder, ignore_errors=True)
    call(
        [sys.executable, "-m", "venv", str(folder)],
        "Python's venv module is missing; install it (on Debian: apt-get install python3.11-venv)",
    )
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    call(
        [*pip, "--quiet", "--require-hashes", "-r", str(LOCKS / "uv.lock")],
        "pip can't fetch uv; check the network and pip's index and proxy settings",
    )


def environment(folder: Path, lock: Path) -> None:
    advice = (
        "uv can't install the locked packages; check the network, the free disk space and uv's "
        "index and proxy settings (UV_DEFAULT_INDEX, HTTPS_PROXY)"
    )
    python = str(folder / "bin" / "python")
    if Path(python).resolve() != Path(sys.executable).resolve():
        uv("venv", "--quiet", "--clear", "--python", sys.executable, str(folder), advice=advice)
    # Compiled once here: a process that isn't allowed to write bytecode (PYTHONDONTWRITEBYTECODE)
    # would compile Feast and Faust anew at each start, which takes four seconds.
    options = ("--compile-bytecode", "--require-hashes", "--python", python)
    uv("pip", "sync", *options, str(lock), advice=advice)


def install_project() -> None:
    """Editable; no build isolation, so that nothing outside of the lock file is fetched."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--python", str(VENV / "bin/python"))
    uv(
        "pip",
        "install",
        *options,
        "-e",
        str(ROOT),
        advice="pyproject.toml can't be built; see above",
    )


def fetch_jars() -> None:
    call(
        [str(VENV / "bin" / "python"), "-m", "infra.local.fetch"],
        "the jars are incomplete; do what the line above says",
    )


def uv(*arguments: str, advice: str) -> None:
    call([str(UV), *arguments], advice)


def call(command: Sequence[str], advice: str) -> None:
    """Run a tool: with its own progress bars on a terminal, else with a line now and then."""
    interactive = sys.stderr.isatty()
    environ = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONHOME")}
    began = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        stderr=None if interactive or "infra.local.fetch" in command else subprocess.PIPE,
        text=True,
    ) as process:
        errors = ""
        while process.returncode is None:
            try:
                _out, errors = process.communicate(timeout=_HEARTBEAT_SECONDS)
            except subprocess.TimeoutExpired:
                if not interactive:
                    say(f"    {time.monotonic() - began:.0f} s so far")
    if process.returncode != 0:
        if errors:
            print(errors.rstrip(), file=sys.stderr)
        raise SetupError(advice)


def check_machine() -> None:
    if sys.version_info[:2] != PYTHON_VERSION:
        found = ".".join(map(str, sys.version_info[:2]))
        raise SetupError(
            f"this needs Python 3.11, and {sys.executable} is {found}; "
            "install Python 3.11, or name it: make PYTHON=/path/to/python3.11"
        )
    if sys.platform != "linux":
        raise SetupError("the local stack runs on Linux only; elsewhere use: docker compose up")
    if libc_version() < GLIBC_VERSION:
        raise SetupError(
            "Triton's wheel needs glibc 2.35 (Debian 12, Ubuntu 22.04 or newer); "
            "on this machine use: docker compose up"
        )
    if libpython_folder() is None:
        raise SetupError(
            "Triton needs Python's shared library, and this Python has none; "
            "install it (on Debian: apt-get install libpython3.11)"
        )
    free = shutil.disk_usage(ROOT).free >> 30
    if free < _FREE_GIB and not (CACHE / "stamps" / "Triton-environment").exists():
        raise SetupError(
            f"{free} GiB are free below {ROOT}, and setup needs {_FREE_GIB}; free some disk space"
        )


def libc_version() -> tuple[int, ...]:
    """The version of glibc; (0, 0) where the C library is another one."""
    name, text = platform.libc_ver()
    return tuple(int(part) for part in text.split(".")[:2]) if name == "glibc" else (0, 0)


def libpython_folder() -> Path | None:
    """Where the interpreter's shared library lies, which Triton's python backend links to."""
    name = f"libpython{sysconfig.get_python_version()}.so.1.0"
    system = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
    for folder in (sysconfig.get_config_var("LIBDIR"), system):
        if folder and (Path(folder) / name).is_file():
            return Path(folder)
    return None


def run_steps() -> None:
    todo = [step for step in steps() if not step.is_done()]
    for number, step in enumerate(todo, start=1):
        began = time.monotonic()
        say(f"setup {number}/{len(todo)}: {step.name} …")
        step.stamp.unlink(missing_ok=True)
        step.run()
        step.stamp.write_text(step.fingerprint(), encoding="utf-8")
        say(f"setup {number}/{len(todo)}: {step.name} done in {time.monotonic() - began:.1f} s")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    try:
        check_machine()
        (CACHE / "stamps").mkdir(parents=True, exist_ok=True)
        with (CACHE / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            run_steps()
    except SetupError as error:
        say(f"setup failed: {error}; then run again: make setup")
        return 1
    except KeyboardInterrupt:
        say("setup was interrupted; run again: make setup")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
