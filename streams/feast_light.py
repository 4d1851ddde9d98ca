"""Import this before Feast: Feast then comes without torch.

Feast imports torch wherever it is installed, for `to_tensor` alone: half a gigabyte and several
seconds that workers, readers and commands have no use for. The encoders' own torch is untouched,
and where Feast or torch was imported before, nothing is changed.
"""

from __future__ import annotations

import sys

if "feast" not in sys.modules and "torch" not in sys.modules:
    sys.modules["torch"] = None  # type: ignore[assignment]  # "not found", in importlib's words
    try:
        import feast.torch_wrapper  # noqa: F401
    finally:
        del sys.modules["torch"]
