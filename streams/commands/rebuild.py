"""`headwater rebuild`: fill a new or changed view from the log."""

from __future__ import annotations

import time

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from streams import rebuild as rebuilding
from streams.commands.exposed import exposed
from streams.errors import ConfigError, HeadwaterError
from streams.producer import EventProducer
from streams.settings import Settings, load_settings
from streams.views import declared_views, feature_store
from streams.workers.declarations import Views
from streams.workers.exposing import expose_sends
from streams.workers.registration import WorkerAddress, read_state, running_workers

# Workers look for changed declarations every second; those of other machines can't be asked.
_SETTLE_SECONDS = 4.0
_TAKE_IN_SECONDS = 60.0
_POLL_SECONDS = 0.2
_ANSWER_SECONDS = 2.0


@click.command(epilog="Example:\n\n\b\n  headwater apply && headwater rebuild --view likes")
@click.option("--view", "name", required=True, help="The sequence view to fill.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), default=2000.0, show_default=True,
    help="Records per second at most, so that live traffic keeps its freshness.",
)  # fmt: skip
def rebuild(name: str, rate: float) -> None:
    """Fill a view with what the log still has: after it was added, lengthened or widened.

    Sends the view's records through the workers again, beside the live ones. Nothing newer is
    overwritten, nobody who was forgotten comes back, and repeating it is harmless.
    """
    settings = load_settings()
    declared = declared_views(feature_store(settings))
    views = declared.sequences
    if name not in views:
        known = ", ".join(views) or "none"
        raise ConfigError(f"there is no sequence view {name!r}; there are: {known}")
    console = Console(stderr=True)
    with console.status("waiting until the workers fold by the applied views"):
        _until_taken_in(settings, Views(views.values(), declared.representations.values()).digest)
    state = rebuilding.Progress()
    columns = (TextColumn("reading the log"), BarColumn(), MofNCompleteColumn())
    started = time.monotonic()
    with (
        EventProducer(settings) as producer,
        Progress(*columns, TimeRemainingColumn(), console=console) as bar,
    ):
        exposed(lambda: expose_sends(producer.counts, settings, time.time))
        task = bar.add_task("rebuild", total=None)
        bounds = rebuilding.log_bounds(settings)
        for copy in rebuilding.copies(settings, views[name], bounds, state):
            producer.send_raw_blocking(copy.key, copy.value, copy.headers)
            time.sleep(max(0.0, started + state.copied / rate - time.monotonic()))
            bar.update(task, total=state.total, completed=state.read)
        bar.update(task, total=max(1, state.total), completed=max(1, state.total))
    click.echo(f"{name}: {state.copied:,} of {state.read:,} records sent to the workers again")


def _until_taken_in(settings: Settings, digest: str) -> None:
    """A copy that a worker still folds by the views before the change would be lost to the new one.

    Raises HeadwaterError if a worker of this machine doesn't get there.
    """
    deadline = time.monotonic() + _TAKE_IN_SECONDS
    while True:
        changed_at = settings.registry_path.stat().st_mtime
        workers = [one for one in running_workers(settings) if one.role == "sequence"]
        behind = [one for one in workers if _declared(one) != digest]
        if not behind and time.time() - changed_at >= _SETTLE_SECONDS:
            return
        if behind and time.monotonic() > deadline:
            pids = ", ".join(str(one.pid) for one in behind)
            raise HeadwaterError(
                f"sequence worker {pids} doesn't fold by the applied views after "
                f"{_TAKE_IN_SECONDS:.0f} s; see `headwater status`, restart it, and rebuild again"
            )
        time.sleep(_POLL_SECONDS)


def _declared(worker: WorkerAddress) -> str | None:
    """Which declarations a worker folds by; None if it doesn't answer."""
    try:
        found: str | None = read_state(worker, _ANSWER_SECONDS).get("declared")
    except (OSError, ValueError):
        return None
    return found
