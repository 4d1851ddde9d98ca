"""What Feast is imported with, each time in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

WRONG = """
try:
    FeatureView(name=5)
except TypeError as error:
    print("refused by its type:", type(error).__name__)
else:
    print("not checked")
"""
CHECK = f"""
import sys, typeguard
original = typeguard.typechecked
import {{module}}
from feast import FeatureView
assert typeguard.typechecked is original
assert "torch" not in sys.modules
{WRONG.replace("TypeError", "typeguard.TypeCheckError")}
"""


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("streams.views", "not checked"),
        ("streams.online_store", "not checked"),
        ("streams.workers.sequence", "not checked"),
        # Where a person declares things, Feast names the argument that is wrong.
        ("streams.commands.apply", "refused by its type"),
        ("feast, streams.views", "refused by its type"),
    ],
)
def test_feast_comes_without_what_nobody_uses(module: str, said: str) -> None:
    program = CHECK.format(module=module)
    if module.startswith("feast,"):
        program = program.replace('assert "torch" not in sys.modules', "")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_torch_is_there_for_who_wants_it_afterwards() -> None:
    program = "import streams.views, torch; print(torch.zeros(1).item())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "0.0"), done.stderr
