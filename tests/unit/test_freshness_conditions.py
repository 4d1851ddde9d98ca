"""`--fail-if`: what a condition may say, and what is true of what can't be told."""

from __future__ import annotations

import msgspec
import pytest

from streams.errors import ConfigError
from streams.monitor.conditions import Figure, figures_of, judge, parse_condition
from streams.monitor.example import example_snapshot
from streams.monitor.snapshot import DeadLetters, Source, State

FIGURES = {
    "representation.p99": Figure(6.2),
    "sequence.p99": Figure(None),
    "coverage": Figure(0.98),
    "sequence.staleness": Figure(None, "Kafka doesn't answer"),
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("representation.p99 > 5s", True),
        ("representation.p99 > 6200ms", False),
        ("representation.p99 >= 6.2s", True),
        ("representation.p99>5", True),
        ("representation.p99 < 1m", True),
        ("coverage < 99%", True),
        ("coverage <= 0.97", False),
        ("coverage < 90% or representation.p99 > 5s", True),
        ("coverage < 90% and representation.p99 > 5s", False),
        ("coverage < 90% and representation.p99 > 5s or coverage > 1%", True),
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    verdict = judge(parse_condition(text), FIGURES)
    assert verdict.holds is holds
    assert bool(verdict.reasons) is holds


def test_what_did_not_happen_breaks_no_limit() -> None:
    assert not judge(parse_condition("sequence.p99 > 1s"), FIGURES).holds


@pytest.mark.parametrize("operator", ["<", ">", "<=", ">="])
def test_what_cannot_be_told_fails_whatever_is_asked(operator: str) -> None:
    verdict = judge(parse_condition(f"sequence.staleness {operator} 1s"), FIGURES)
    assert verdict.holds
    assert "can't tell: Kafka doesn't answer" in verdict.reasons[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "representation.p99",
        "representation.p99 > ",
        "representation.p99 > 5 parsecs",
        "5s < representation.p99",
        "representation.p99 = 5s",
        "representation.p99 > 5s and",
        "representation.p99 > -5s",
        "__import__('os').system('true') > 1",
        "a" * 600,
    ],
)
def test_a_bad_condition_is_wrong_use(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_condition(text)


def test_an_unknown_figure_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"representation\.p99"):
        judge(parse_condition("representation.p98 > 5s"), FIGURES)


def test_the_figures_of_a_snapshot() -> None:
    figures = figures_of(example_snapshot())
    assert figures["representation.staleness"].value == 42.4
    assert figures["representation.v2.p99"].value == 6.2
    assert figures["coverage"].value == pytest.approx(405 / 412)
    assert figures["stage.broker_to_folded.p99"].value == 0.140
    # Nothing is measured since no worker answers: that isn't silence.
    assert figures["stage.encoded_to_stored.p99"].problem
    assert figures["workers.down"].value == 1


def test_silent_sources_make_their_figures_unknown() -> None:
    snapshot = example_snapshot()
    workers = Source(name="workers", ok=False, last_ok_at=None, num_errors=1,
                     duration_seconds=None, error="no answer within 8 s")  # fmt: skip
    objective = msgspec.structs.replace(
        snapshot.objectives[0], good_share=None, burn_rates=((300, None),), problem="no worker"
    )
    letters = DeadLetters(rate_problem="no worker")
    figures = figures_of(
        msgspec.structs.replace(
            snapshot, sources=(workers,), objectives=(objective,), dead_letters=letters
        )
    )
    assert figures["workers.down"] == Figure(None, "no answer within 8 s")
    for name in ("sequence.good", "sequence.burn_5m", "dead_letters.rate", "dead_letters.share"):
        assert figures[name] == Figure(None, "no worker")


def test_unknown_staleness_makes_its_figures_unknown() -> None:
    snapshot = example_snapshot()
    blind = msgspec.structs.replace(
        snapshot.staleness[0], state=State.UNKNOWN, seconds=None, waiting_seconds=None,
        lag_records=None, problem="Kafka doesn't answer",
    )  # fmt: skip
    figures = figures_of(msgspec.structs.replace(snapshot, staleness=(blind,)))
    for name in ("sequence.staleness", "sequence.waiting", "sequence.lag"):
        assert figures[name] == Figure(None, "Kafka doesn't answer")
