"""Import this before Feast: see `streams.feast_import`."""

from __future__ import annotations

from streams.feast_import import import_feast

import_feast(checked=False)
