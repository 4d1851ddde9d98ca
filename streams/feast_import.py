"""How Feast is imported: without what workers, readers and commands have no use for.

- torch, which Feast imports wherever it is installed, for `to_tensor` alone: half a gigabyte and
  several seconds. The encoders' own torch is untouched.
- typeguard's checks of its constructors' arguments, which compile Feast's classes anew at every
  start: three and a half seconds of five. Where declarations are made, they stay: `headwater apply`
  and whoever imports Feast first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def import_feast(*, checked: bool) -> None:
    """Import Feast now; nothing happens if it or torch was imported before."""
    if "feast" in sys.modules:
        return
    with _without_torch(), _typechecks(checked):
        import_module("feast.torch_wrapper")  # and Feast before it


@contextmanager
def _without_torch() -> Iterator[None]:
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # "not found", in importlib's words
    try:
        yield
    finally:
        del sys.modules["torch"]


@contextmanager
def _typechecks(wanted: bool) -> Iterator[None]:
    typeguard = import_module("typeguard")
    instrument = typeguard.typechecked
    if not wanted:
        vars(typeguard)["typechecked"] = _as_it_is
    try:
        yield
    finally:
        vars(typeguard)["typechecked"] = instrument


def _as_it_is(target: Any = None, **_: Any) -> Any:
    """In the place of `typechecked`, bare or with options."""
    keep: Callable[[Any], Any] = lambda same: same  # noqa: E731
    return keep if target is None else target
