"""What is shipped: the wheel's content, commands and dependencies; and what is checked in."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import click
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
SHIPPED = ("streams", "encoders", "infra")


def project_files() -> list[str]:
    """Every file that is checked in, or would be with the next commit."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    return sorted(name for name in set(listed) if name and (ROOT / name).is_file())


FILES = project_files()
PYTHON = [name for name in FILES if name.endswith(".py")]


# -- the wheel -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy of the project's files."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in FILES:
        if name.startswith((*(f"{package}/" for package in SHIPPED), "pyproject", "README", "LIC")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(target)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, check=True)
    (built,) = target.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_every_file_of_every_package(wheel: zipfile.ZipFile) -> None:
    """Data files too: a lock or a template that is left out is missed when it runs only."""
    folders = {name.rpartition("/")[0] for name in FILES if name.endswith("__init__.py")}
    wanted = {
        name
        for name in FILES
        if name.startswith(tuple(f"{package}/" for package in SHIPPED))
        and any(name.startswith(f"{folder}/") for folder in folders)
        and not name.startswith(NOT_SHIPPED)
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == wanted


# Configuration that compose.yaml mounts from the checkout.
NOT_SHIPPED = tuple(
    f"infra/{name}/"
    for name in ("cassandra", "grafana", "images", "k8s", "kafka", "prometheus", "triton")
)


def test_packages_are_listed_one_by_one() -> None:
    folders = {name.rpartition("/")[0] for name in FILES if name.endswith("/__init__.py")}
    found = {f.replace("/", ".") for f in folders if f.partition("/")[0] in SHIPPED}
    listed = PYPROJECT["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(found)


def test_the_wheel_is_marked_as_private(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    metadata = wheel.read(name).decode()
    assert "Classifier: Private :: Do Not Upload" in metadata
    assert f"Version: {PROJECT['version']}" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())


def test_the_license_is_the_whole_apache_license() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License\n" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "APPENDIX: How to apply the Apache License to your work." in text


# -- commands --------------------------------------------------------------------------------------

COMMANDS: dict[str, str] = PROJECT["entry-points"]["headwater.commands"]


def resolve(reference: str) -> Any:
    """What an entry point such as `package.module:name` stands for."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)


def test_the_console_script_resolves() -> None:
    assert set(PROJECT["scripts"]) == {"headwater"}
    assert callable(resolve(PROJECT["scripts"]["headwater"]))


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_of_other_packages_resolve(name: str) -> None:
    command = resolve(COMMANDS[name])
    assert isinstance(command, click.Command)
    assert command.name == name
    assert not COMMANDS[name].startswith("streams."), "commands of streams are in streams.cli"


def test_other_entry_points_resolve() -> None:
    groups = PROJECT["entry-points"]
    for group in set(groups) - {"headwater.commands"}:
        for reference in groups[group].values():
            assert callable(resolve(reference)), reference


# -- dependencies ----------------------------------------------------------------------------------

# import name -> distribution, where they differ
DISTRIBUTIONS = {
    "axe_playwright_python": "axe-playwright-python",
    "cassandra": "cassandra-driver",
    "confluent_kafka": "confluent-kafka",
    "faust": "faust-streaming",
    "google": "protobuf",
    "mode": "mode-streaming",
    "prometheus_client": "prometheus-client",
    "tomli_w": "tomli-w",
    "yaml": "pyyaml",
}
# Parts of another dependency's public interface, whose versions fit it: used -> brought by.
BROUGHT = {
    "aiohttp": "faust-streaming",
    "fastapi": "nicegui",
    "mode-streaming": "faust-streaming",
    "packaging": "pytest",
    "pandas": "feast",
    "protobuf": "tritonclient",
    "pydantic": "feast",
    "pyyaml": "feast",
    "requests": "jgo",
    "starlette": "fastapi",
    "uvicorn": "nicegui",
}
# Not a package: Triton gives it to the model that it runs.
GIVEN = {"triton_python_backend_utils"}


def declared() -> set[str]:
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *(line for name in extras for line in extras[name])]
    return {Requirement(line).name.lower() for line in lines}


def imported(names: list[str]) -> set[str]:
    """The distributions that these source files import."""
    tops = set()
    for name in names:
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                tops |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                tops.add((node.module or "").partition(".")[0])
    ours = {*SHIPPED, "feature_repo", "tests"}
    others = tops - {*sys.stdlib_module_names, *ours, *GIVEN}
    return {DISTRIBUTIONS.get(top, top) for top in others}


# Programs of other projects, each in an environment of its own: requirements/bench-*.in.
COMPETITORS = "tests/benchmarks/competitors/"


def test_what_is_imported_is_declared() -> None:
    ours = [name for name in PYTHON if not name.startswith(COMPETITORS)]
    missing = imported(ours) - declared() - set(BROUGHT)
    assert missing == set()


def test_what_competitors_import_is_in_their_environments() -> None:
    files = (ROOT / "requirements").glob("bench-*.in")
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    wanted = {Requirement(line).name.lower() for line in lines if line[:1].isalpha()}
    competitors = [name for name in PYTHON if name.startswith(COMPETITORS)]
    assert imported(competitors) - wanted - set(BROUGHT) == set()


def test_what_is_declared_is_imported() -> None:
    main = {Requirement(line).name.lower() for line in PROJECT["dependencies"]}
    assert main - imported(PYTHON) == set()


@pytest.mark.parametrize("used", BROUGHT)
def test_what_comes_with_a_dependency_does_come_with_it(used: str) -> None:
    needed = {Requirement(line).name.lower() for line in requires(BROUGHT[used]) or ()}
    assert used in needed


# -- the checkout ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile", ".ci/run"]
)
def test_what_a_newcomer_looks_for_is_there(name: str) -> None:
    assert name in FILES
    assert (ROOT / name).stat().st_size > 100


def test_the_changelog_knows_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{PROJECT['version']}]" in text or "## [Unreleased]" in text


def test_scripts_can_be_started() -> None:
    for name in FILES:
        starts = (ROOT / name).read_bytes()[:2] == b"#!"
        assert starts == bool((ROOT / name).stat().st_mode & 0o111), name


MAX_BYTES = 512 * 1024
MAX_TOTAL_BYTES = 6 * 1024 * 1024


def test_nothing_large_is_checked_in() -> None:
    sizes = {name: (ROOT / name).stat().st_size for name in FILES}
    assert {name: size for name, size in sizes.items() if size > MAX_BYTES} == {}
    assert sum(sizes.values()) < MAX_TOTAL_BYTES
    assert [name for name in FILES if (ROOT / name).is_symlink()] == []


BINARY = (".png", ".ico", ".woff2", ".parquet")
TEXTS = [name for name in FILES if not name.endswith(BINARY)]

# Written in parts, so that this file doesn't find itself. What each stands for: a path of one
# machine, the host of a package or image registry (a company's mirror is chosen outside of the
# project), a note to oneself, a tool's name.
FORBIDDEN = [
    r"(?<![\w.\-/:}])/(?:work|home|root|Users)/\w",
    r"(?<![\w.\-/:}])/t" + r"mp/(?!main\.lock|triton\.lock)\w",
    r"\b(?:pypi\.o" + r"rg|python" + r"hosted|conda\.ana" + r"conda)",
    r"\b(?:repo1?\.mav" + r"en|jf" + r"rog|artifac" + r"tory|sona" + r"type)",
    r"\b(?:nvcr\.i" + r"o|ghcr\.i" + r"o|quay\.i" + r"o|docker\.i" + r"o)\b",
    r"(?:--|_)(?:extra-)?index[-_]url\b\s*[=\s]\s*\S*:",
    r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
    r"(?i)\b(?:clau" + r"de|anthro" + r"pic|chat" + r"gpt|copi" + r"lot)\b",
    r"(?i)\bissue" + r"s? #?\d",
]


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_no_forbidden_words(pattern: str) -> None:
    expression = re.compile(pattern)
    found = [
        f"{name}:{number}: {line.strip()[:80]}"
        for name in TEXTS
        for number, line in enumerate(_lines(name), 1)
        if expression.search(line)
    ]
    assert found == []


def _lines(name: str) -> list[str]:
    return (ROOT / name).read_text(encoding="utf-8").splitlines()


def test_texts_are_utf8_with_line_ends_of_unix() -> None:
    def check(name: str, holds: Callable[[bytes], bool]) -> bool:
        return holds((ROOT / name).read_bytes())

    assert [name for name in TEXTS if check(name, lambda data: b"\r" in data)] == []
    ends = [name for name in TEXTS if check(name, lambda data: data[-1:] not in (b"", b"\n"))]
    assert ends == []
