"""MovieLens-100K as engagement events, on the demo's clock.

The ratings come out of the recbole wheel, fetched as data (never installed). A rating is a `view`
with the rating as its value; 4 and 5 are a `like` as well. The log is replayed at a constant pace,
so an event's time is its place in the log divided by the pace: order and neighbours are the
data's own, and event times are times at which the event really happens in the demo.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet

from streams.errors import HeadwaterError
from streams.events import Event

CHECKOUT = Path(__file__).resolve().parents[2]
RATINGS = Path("recbole") / "dataset_example" / "ml-100k" / "ml-100k.inter"
LIKED = 4.0
SURFACE = "movielens"


class Rating(NamedTuple):
    user: str
    item: str
    stars: float
    timestamp: float


def fetch(cache: Path) -> Path:
    """Bring the data set into the cache; returns the file of ratings. Skips what is there."""
    folder = cache / "movielens"
    if (folder / RATINGS).is_file():
        return folder / RATINGS
    lock = CHECKOUT / "requirements" / "movielens.lock"
    command = [_uv(), "pip", "install", "--quiet", "--python", sys.executable, "--no-deps"]
    command += ["--require-hashes", "--target", str(folder), "--requirement", str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not (folder / RATINGS).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        reason = done.stderr.strip().splitlines()[-1:] or ["the wheel has no ratings"]
        raise HeadwaterError(
            f"can't fetch MovieLens-100K (recbole's wheel): {reason[0]}; check that the package "
            "registry can be reached, then run it again"
        )
    return folder / RATINGS


def _uv() -> str:
    beside = CHECKOUT / ".headwater-cache" / "tools" / "bin" / "uv"
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise HeadwaterError("uv is missing: run `make setup`")
    return found


def read_ratings(path: Path) -> list[Rating]:
    """All ratings, oldest first; the file's order decides between equal times."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    ratings = [Rating(user, item, float(stars), float(time)) for user, item, stars, time in rows]
    return sorted(ratings, key=lambda rating: rating.timestamp)


class Log(NamedTuple):
    """The data set split by time: `earlier` is history, `later` is streamed live."""

    earlier: list[Event]
    later: list[Event]


def make_log(ratings: list[Rating], now_ms: int, pace: float, share: float = 0.8) -> Log:
    """Events of all ratings. History ends at `now_ms`; later events are timed when they are sent.

    `pace` in events per second. The times of `later` start at 0: add the start of the stream.
    """
    cut = int(len(ratings) * share)
    earlier = _events(ratings[:cut], 0)
    later = _events(ratings[cut:], cut)
    first = now_ms - 1000 - int(len(earlier) / pace * 1000)
    return Log(_timed(earlier, first, pace), _timed(later, 0, pace))


def _events(ratings: list[Rating], first: int) -> list[tuple[Rating, str, str]]:
    """(rating, event type, event id) in log order; ids sort in that order too."""
    events = []
    for number, rating in enumerate(ratings, first):
        events.append((rating, "view", f"ml-{number:06d}-view"))
        if rating.stars >= LIKED:
            events.append((rating, "like", f"ml-{number:06d}-wlike"))
    return events


def _timed(events: list[tuple[Rating, str, str]], start_ms: int, pace: float) -> list[Event]:
    timed = []
    time_of: dict[str, int] = {}
    for place, (rating, event_type, event_id) in enumerate(events):
        rating_id = event_id.rpartition("-")[0]
        # A like happens with its view, at the same time.
        event_time = time_of.setdefault(rating_id, start_ms + int(place / pace * 1000))
        timed.append(
            Event(
                event_id,
                rating.user,
                rating.item,
                event_type,
                event_time,
                surface=SURFACE,
                value=rating.stars,
            )
        )
    return timed


def write_events(events: list[Event], path: Path) -> None:
    """The events as a Parquet file, what `headwater train` and `headwater produce` read."""
    columns = ("event_id", "user_id", "item_id", "event_type", "event_time", "surface", "value")
    table = pa.table({name: [getattr(event, name) for event in events] for name in columns})
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path)


def moved(event: Event, start_ms: int) -> Event:
    """A later event with the time at which it really happened in the stream."""
    return msgspec.structs.replace(event, event_time=event.event_time + start_ms)
