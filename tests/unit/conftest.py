"""Hypothesis' profile of the unit tests: no deadlines, since the machine may be busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("headwater", deadline=None, print_blob=True)
settings.load_profile("headwater")
