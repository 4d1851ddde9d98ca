"""What operators change while traffic flows: views, the topic itself, who is remembered."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from streams import kafka
from streams.errors import InvalidRecord
from streams.events import Event, Forget, decode_record
from streams.views import declared_views, feature_store
from streams.workers.registration import running_workers
from tests.faults.conftest import Headwater
from tests.faults.feed import good
from tests.faults.harness import Run
from tests.worker_platform import PARTITIONS, ROOT, wait_until

NEW_VIEW = """
shares = sequence_view("shares", entity=user, event_types=["share"], max_length=7)
"""


class Repo:
    """A feature repository of this test's own, that it edits and applies."""

    def __init__(self, run: Run, headwater: Headwater, folder: Path) -> None:
        shutil.copytree(ROOT / "feature_repo", folder)
        self._run, self._headwater = run, headwater
        self._file = folder / "features.py"
        run.platform.environ["HEADWATER_FEATURE_REPO"] = str(folder)

    def change(self, *replacements: tuple[str, str]) -> str:
        """Edit, `headwater apply`; answers what it said."""
        text = self._file.read_text()
        for pattern, replacement in replacements:
            text, count = re.subn(pattern, replacement, text, count=1)
            assert count == 1, pattern
        self._file.write_text(text)
        code, said = self._headwater("apply")
        assert code == 0, said
        settings = self._run.platform.settings
        self._run.platform.views = declared_views(feature_store(settings))
        return said


@pytest.fixture
def repo(run: Run, headwater: Headwater, tmp_path: Path) -> Repo:
    return Repo(run, headwater, tmp_path / "repo")


def test_a_view_that_grows_is_filled_beside_live_traffic(
    run: Run, headwater: Headwater, repo: Repo
) -> None:
    """Longer, with another event type, and a new view: what the log has is in them afterwards, and
    nothing newer was overwritten."""
    repo.change(
        ("max_length=256", "max_length=12"),
        ("max_length=128,\n    max_age", "max_length=5,\n    max_age"),
    )
    worker = run.worker().wait_ready()
    run.produce_next(1_500)
    run.check()
    said = repo.change(
        ("max_length=12", "max_length=200"),
        ('"long_view", "click"', '"long_view", "click", "nobody_declared_this"'),
        (
            r"\nuser_representation = ",
            f"{NEW_VIEW}\nuser_representation = ",
        ),
    )
    assert "engagement: max_length 12 → 200 holds for new events" in said
    assert "run: headwater rebuild --view engagement" in said
    assert "shares is new" in said
    with run.load(rate=300):
        run.progress(100)
        for view in ("engagement", "shares"):
            code, said = headwater("rebuild", "--view", view, "--rate", "1500")
            assert code == 0, said
            assert "sent to the workers again" in said
        run.progress(100)
    run.check()
    assert worker.terminate() == 0
    code, said = headwater("rebuild", "--view", "nothing")
    assert (code, "there is no sequence view 'nothing'" in said) == (2, True)


def test_a_view_that_shrinks_is_shorter_at_once(run: Run, repo: Repo) -> None:
    repo.change(("max_length=256", "max_length=40"))
    run.worker().wait_ready()
    run.produce_next(1_500)
    run.check()
    said = repo.change(("max_length=40", "max_length=6"))
    assert "engagement: max_length 40 → 6 holds for readers at once" in said
    run.check_stored()
    run.produce_next(500)
    run.check()


def test_a_forgotten_user_stays_so_whatever_is_replayed(run: Run, headwater: Headwater) -> None:
    """Late events, a rebuild of every view, and the whole log again from its start."""
    run.worker().wait_ready()
    run.produce_next(1_000)
    event = next(e for e in run.events if isinstance(e, Event) and e.event_type == "view")
    user = event.user_id
    code, said = headwater("forget", user)
    assert code == 0, said
    forgets = [f for f in _log(run) if isinstance(f, Forget) and f.user_id == user]
    run.produced.append(good(forgets[-1]))
    late = Event("late", user, "item", "view", event.event_time + 1)
    run.produce([good(late)])
    run.check()
    for view in run.platform.views.sequences:
        assert headwater("rebuild", "--view", view)[0] == 0
    run.catch_up()
    run.check_stored()
    replaying = run.worker(group=f"{run.platform.settings.sequence_worker.group}-again")
    replaying.wait_ready()
    wait_until(
        lambda: replaying.state()["lag"] == 0 and replaying.state()["counters"]["consumed"] > 0,
        90, "the log was replayed",
    )  # fmt: skip
    run.check_stored()
    code, said = headwater("get", user, "--json")
    assert code == 0, said
    answer = json.loads(said)
    assert answer["forgotten_at"] is not None
    assert all(not sequence["item_id"] for sequence in answer["sequences"].values())


def _log(run: Run) -> list[Event | Forget]:
    settings = run.platform.settings.kafka
    found: list[Event | Forget] = []
    for part in kafka.topic_bounds(settings, settings.events_topic):
        for message in kafka.read_range(
            settings, settings.events_topic, part.partition, part.start, part.end
        ):
            try:
                found.append(decode_record(message.value()))
            except InvalidRecord:
                continue
    return found


def test_added_partitions_are_refused_until_an_epoch_is_opened(
    run: Run, headwater: Headwater
) -> None:
    """Users move between partitions: records that wait in an old one reach their new home."""
    worker = run.worker().wait_ready()
    run.produce_next(800)
    run.catch_up()
    run.watcher.look(worker)
    settings = run.platform.settings
    topic = settings.kafka.events_topic
    assert worker.terminate() == 0
    run.produce_next(400)
    admin = kafka.admin_client(settings.kafka)
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 3)])[topic].result()
    wait_until(
        lambda: kafka.topic_identity(settings.kafka, topic).partitions == PARTITIONS + 3,
        30, "the partitions are there",
    )  # fmt: skip
    refused = run.worker()
    assert refused.exit_code(60) == 1
    assert "headwater log open-epoch" in refused.output()
    code, said = headwater("log", "status")
    assert code == 1
    assert f"{PARTITIONS + 3} partitions, epoch 1 was opened with {PARTITIONS}" in said
    code, said = headwater("log", "open-epoch", "--yes")
    assert (code, "epoch 2 is open" in said) == (0, True)
    assert headwater("log", "status")[0] == 0
    run.worker().wait_ready()
    run.produce_next(800)
    run.check()
    assert len(running_workers(settings)) == 1


def test_a_topic_changed_under_a_running_worker_ends_it(run: Run) -> None:
    """It must not fold another record once the positions mean something else."""
    worker = run.worker().wait_ready()
    run.produce_next(300)
    run.catch_up()
    topic = run.platform.settings.kafka.events_topic
    admin = kafka.admin_client(run.platform.settings.kafka)
    admin.create_partitions([NewPartitions(topic, PARTITIONS + 1)])[topic].result()
    assert worker.exit_code(60) == 1
    assert "headwater log open-epoch" in worker.output()
