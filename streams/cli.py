"""The `headwater` command: finds the sub-command, loads only its module, maps errors to exit codes.

Exit codes: 0 done, 1 failed, 2 wrong use or configuration, 130 interrupted.
Commands of other packages (local stack, encoders, demo) come by entry points, group
`headwater.commands`, so that this package imports none of them.
"""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import click

from streams.commands.lazy import LazyGroup
from streams.errors import ConfigError, HeadwaterError

COMMANDS_GROUP = "headwater.commands"

# name -> (module:attribute, one line for the list of commands)
_COMMANDS = {
    "apply": ("streams.commands.apply:apply", "Create topics, tables and features."),
    "config": ("streams.commands.config:config", "Print the settings and their sources."),
    "dead-letters": ("streams.commands.dead_letters:dead_letters", "See and replay bad records."),
    "forget": ("streams.commands.events:forget", "Delete users, in the order of the log."),
    "freshness": ("streams.commands.freshness:freshness", "Show how fresh everything is."),
    "get": ("streams.commands.features:get", "Read the features of users."),
    "log": ("streams.commands.log:log", "Compare the topic with the recorded log positions."),
    "monitor": ("streams.commands.monitor:monitor", "Watch freshness: page, canaries, metrics."),
    "produce": ("streams.commands.events:produce", "Send events from a file or stdin."),
    "rebuild": ("streams.commands.rebuild:rebuild", "Fill a new or changed view from the log."),
    "serve": ("streams.commands.features:serve", "Serve features over HTTP (Feast's server)."),
    "status": ("streams.commands.status:status", "Show services, workers, counters and lag."),
    "trace": ("streams.commands.trace:trace", "Follow one event through every stage."),
    "versions": ("streams.commands.versions:versions", "List and switch encoder versions."),
    "views": ("streams.commands.features:views", "List the declared views."),
    "worker": ("streams.commands.workers:worker", "Run a sequence or an encoder worker."),
}

# What the list of commands says of those that come by entry points, so that it needs no import.
_ELSEWHERE = {
    "demo": "Show the whole way on real data.",
    "up": "Start Kafka, Cassandra and Triton on this machine.",
    "down": "Stop the local stack; its data stays.",
    "logs": "Show the logs of the local stack.",
    "doctor": "Check this machine and checkout.",
    "train": "Train an encoder on events.",
    "export": "Export a checkpoint to Triton as a version.",
}

# The order in which a new user needs them; what isn't named here follows by name.
_ORDER = (
    *("demo", "up", "apply", "worker", "produce", "get", "status", "serve"),
    *("monitor", "freshness"),
    *("train", "export", "versions", "views"),
)


class RootGroup(LazyGroup):
    """Our commands, and those that other packages offer by entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = {*super().list_commands(ctx), *(p.name for p in entry_points(group=COMMANDS_GROUP))}
        ordered = [name for name in _ORDER if name in names]
        return ordered + sorted(names - set(ordered))

    def summary(self, ctx: click.Context, name: str) -> str:
        return _ELSEWHERE.get(name) or super().summary(ctx, name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for point in entry_points(group=COMMANDS_GROUP, name=cmd_name):
            loaded: click.Command = point.load()
            return loaded
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=RootGroup,
    lazy=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Examples:\n\n\b\n  headwater up && headwater apply\n  headwater worker sequence &\n"
    "  headwater produce events.jsonl\n  headwater get alice --json",
)
@click.version_option(package_name="headwater", prog_name="headwater")
def headwater() -> None:
    """Streaming features and foundation representations: events in, fresh features out."""


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    try:
        code = headwater.main(args=arguments, prog_name="headwater", standalone_mode=False)
    except click.exceptions.Exit as exit_:
        return int(exit_.exit_code)
    except click.ClickException as error:
        error.show()
        return 2 if isinstance(error, click.UsageError) else 1
    except ConfigError as error:
        click.secho(f"Error: {error}", fg="red", err=True)
        return 2
    except HeadwaterError as error:
        click.secho(f"Error: {error}", fg="red", err=True)
        return 1
    except BrokenPipeError:
        # The reader went away (`headwater … | head`); keep Python from complaining at exit.
        sys.stderr.close()
        return 1
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 130
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
