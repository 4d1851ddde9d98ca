"""The commands of the local stack: up, down, logs, doctor."""

from __future__ import annotations

import signal
import sys
import time

import click

from infra.local.doctor import Finding, examine
from infra.local.layout import SERVICES, Home
from infra.local.log_files import follow, last_lines, log_files
from infra.local.service import ServiceFailed
from infra.local.stack import LocalStack, end_programs
from streams.errors import ConfigError

_MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}
_WATCH_SECONDS = 0.5


def _chosen(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",")) if value else SERVICES
    for name in names:
        if name not in SERVICES:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(SERVICES)}")
    return names


_only = click.option(
    "--only",
    "services",
    callback=_chosen,
    metavar="NAMES",
    help="Some of kafka, cassandra, triton, with commas between them (default: all).",
)


@click.command(epilog="Example: headwater up --only kafka,cassandra")
@_only
@click.option("--attach", is_flag=True, help="Stay, and stop everything when this command ends.")
def up(services: tuple[str, ...], attach: bool) -> None:
    """Start Kafka, Cassandra and Triton on this machine.

    Returns when each has answered a request. The services go on until `headwater down`; data,
    logs and addresses lie below HEADWATER_HOME (default: .headwater in the checkout).
    """
    stack = LocalStack(services=services, attached=attach, on_progress=_progress)
    before = {state.name: state.state for state in stack.states()}
    if set(before.values()) == {"ready"}:
        goes_on = " and goes on after this command" if attach else ""
        click.echo(f"The stack in {stack.home.root} is running already{goes_on}.")
    if not attach:
        _start_detached(stack)
        _show_addresses(stack)
        return
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    with stack:
        _show_addresses(stack)
        click.echo("Press Ctrl-C to stop.")
        _watch(stack)


@click.command(epilog="Example: headwater down")
@_only
def down(services: tuple[str, ...]) -> None:
    """Stop the local stack in good order; its data stays."""
    stack = LocalStack(services=services, on_progress=_progress)
    if set(services) == set(SERVICES):
        for name in end_programs(stack.home):
            _progress(name, "stopped")
    if not any(service.is_running for service in stack.services):
        click.echo(f"Nothing is running in {stack.home.root}.")
    stack.stop()


@click.command(epilog="Example: headwater logs cassandra -f")
@click.argument("service", required=False)
@click.option("-f", "--follow", "following", is_flag=True, help="Go on as lines are written.")
@click.option(
    "-n", "--lines", default=20, show_default=True, help="Lines of each log to begin with."
)
def logs(service: str | None, following: bool, lines: int) -> None:
    """Show the logs of the local stack (of one SERVICE, or of all)."""
    files = log_files(Home.from_environment())
    if service is not None and service not in files:
        known = ", ".join(files) or "none yet; start the stack: headwater up"
        raise ConfigError(f"no log of {service!r}; there are: {known}")
    chosen = {service: files[service]} if service else files
    width = max(map(len, chosen)) if len(chosen) > 1 else 0
    for name, path in chosen.items():
        for line in last_lines(path, lines):
            _show_line(name, line, width)
    if following:
        for name, line in follow(chosen):
            _show_line(name, line, width)


@click.command(epilog="Example: headwater doctor")
def doctor() -> None:
    """Check this machine and checkout, and say what to do about each problem."""
    findings = list(examine(Home.from_environment()))
    for finding in findings:
        _show_finding(finding)
    failed = sum(finding.verdict == "fail" for finding in findings)
    if failed:
        raise click.ClickException(f"{failed} problem(s); the lines above say what to do")
    click.echo("Everything that the local stack needs is there.")


def _start_detached(stack: LocalStack) -> None:
    """Interrupted or failed, it leaves nothing of its own behind."""
    try:
        stack.start()
    except BaseException:
        stack.close()
        raise


def _watch(stack: LocalStack) -> None:
    while True:
        for service in stack.services:
            if not service.is_running:
                state = service.state()
                raise ServiceFailed(f"{state.name} ended: {state.detail}")
        time.sleep(_WATCH_SECONDS)


def _leave(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def _progress(service: str, what: str) -> None:
    click.echo(f"{service:<15} {what}")


def _show_addresses(stack: LocalStack) -> None:
    click.echo(f"\nThe addresses are in {stack.home.stack_file}, which every command reads:")
    for name, address in stack.addresses.items():
        click.echo(f"  {name:<10} {address}")


def _show_line(name: str, line: str, width: int) -> None:
    """`width` of the names; 0 leaves them out."""
    click.echo(f"{click.style(name.ljust(width), fg='cyan')} {line}" if width else line)


def _show_finding(finding: Finding) -> None:
    mark, color = _MARKS[finding.verdict]
    click.echo(f"{click.style(mark, fg=color)} {finding.subject:<22} {finding.detail}")
    if finding.advice:
        click.echo(f"  {'':<22} → {finding.advice}")
