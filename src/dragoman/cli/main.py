"""The `dragoman` command: its subcommands, its help and its error handling.

`COMMANDS` lists the subcommands. The help does not import their modules, so it stays fast. A `Failure` or a usage error
is printed as one sentence on standard error and sets the exit status; any other exception is a bug and shows its
traceback.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from dragoman import __version__
from dragoman.cli import output
from dragoman.cli.output import Failure
from dragoman.cli.settings import Before, ConfigFile, Overrides


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand. `target` is `module:name` of a function with typer's annotations or of a typer.Typer."""

    name: str
    target: str
    summary: str
    extra: str = ""  # the extra of the package that the command needs


# A module that is installed with the extra and with no smaller one.
MODULE_OF_EXTRA = {"client": "aiohttp", "node": "uvloop", "server": "hiredis", "tools": "redis"}
COMMANDS: tuple[Command, ...] = (
    Command("serve", "dragoman.cli.serve:serve", "Run Dragoman: a supervisor and its instances.", "server"),
    Command("demo", "dragoman.cli.serve:demo", "Run Dragoman with local nodes.", "server"),
    Command("node", "dragoman.cli.node:node", "Run a node.", "node"),
    Command("models", "dragoman.cli.models:app", "List, get and check the models of real engines.", "node"),
    Command("say", "dragoman.cli.say:say", "Send a recording and show its translation.", "client"),
    Command("chat", "dragoman.cli.chat:app", "Chat in the terminal.", "client"),
    Command("listen", "dragoman.cli.listen:listen", "Join a room and print what is said in it, translated.", "client"),
    Command("smoke", "dragoman.tools.smoke:smoke", "Send a result across two instances and show its path.", "tools"),
    Command("status", "dragoman.cli.status:status", "Show instances, durability, inboxes and nodes."),
    Command("explain", "dragoman.cli.explain:explain", "Show why a job went to its node, and how it ended."),
    Command("dlq", "dragoman.cli.operate:app", "List, show, replay and drop dead letters."),
    Command(
        "drain", "dragoman.cli.operate:drain", "Drain an instance or a node: it finishes its work and gets no new work."
    ),
    Command("session", "dragoman.cli.operate:session", "End a session."),
    Command("room", "dragoman.cli.room:app", "Open, list, show and close rooms, and write their transcripts."),
    Command("token", "dragoman.cli.token:app", "Create and revoke tokens of clients, nodes and operators.", "server"),
    Command("audit", "dragoman.cli.operate:audit", "Show what operators changed."),
    Command("db", "dragoman.cli.db:app", "Show and apply the migrations of the chat database.", "server"),
    Command("config", "dragoman.cli.config:app", "Check, show and document the settings."),
    Command(
        "verify",
        "dragoman.tools.verify.cli:verify",
        "Inject faults into a cluster and check that nothing is lost.",
        "tools",
    ),
    Command(
        "bench", "dragoman.tools.bench.cli:app", "Measure speed, next to comparable software in the same run.", "tools"
    ),
)


class LazyCommands(Mapping[str, Any]):
    """The commands by name; looking one up imports its module."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._commands = {command.name: command for command in commands}

    def __getitem__(self, name: str) -> Any:
        return imported(self._commands[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)


def imported(command: Command) -> Any:
    """The command, imported. Raises Failure if its extra is not installed."""
    if command.extra and find_spec(MODULE_OF_EXTRA[command.extra]) is None:
        raise Failure(
            f"'dragoman {command.name}' needs the extra '{command.extra}', which is not installed. "
            f"Install it: {install_command(command.extra, Path(__file__).parents[3])}"
        )
    module, _, attribute = command.target.partition(":")
    target = getattr(import_module(module), attribute)
    group = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(target, typer.Typer):
        group.add_typer(target, name=command.name)
    else:
        group.command(command.name)(target)
    return get_group(group).commands[command.name]


def install_command(extra: str, root: Path) -> str:
    """How to install an extra. `root` is the folder above `src`: in a checkout, `make` installs from the lock there."""
    if (root / "requirements-dev.lock").is_file():
        return "make install"
    return f"pip install 'dragoman[{extra}]'"


class LazyGroup(TyperGroup):
    """A group that writes its help from `COMMANDS`, without importing a command."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast(Any, LazyCommands(COMMANDS))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(command.name, command.summary) for command in COMMANDS])


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,  # rich would double the time that the help takes
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(asked: bool) -> None:
    if asked:
        output.line(f"dragoman {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog="'dragoman COMMAND --help' explains one command, 'dragoman config doc' all settings.",
)
def dragoman(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """The real-time control plane of live-translated conversation."""
    ctx.obj = Before(config, tuple(override or ()))
    if ctx.invoked_subcommand is None:
        output.block(ctx.get_help())


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    try:
        result = get_command(app).main(args=list(args), prog_name="dragoman", standalone_mode=False)
    except Failure as failure:
        output.note(failure)
        return failure.exit_code
    except typer.TyperException as wrong:
        output.error(_sentence(wrong))
        return wrong.exit_code
    except typer.Abort:  # the user answered a question with no
        return 1
    return result if isinstance(result, int) else 0


def _sentence(wrong: typer.TyperException) -> str:
    message = wrong.format_message()
    if message.startswith("Usage:"):  # a group without a command: its help
        return message
    context = getattr(wrong, "ctx", None)
    where = context.command_path if context is not None else "dragoman"
    return f"dragoman: {message.rstrip('.?')}{'?' if message.endswith('?') else '.'} Try '{where} --help'."


def main() -> None:
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
