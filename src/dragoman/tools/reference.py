"""Prints the generated pages of docs/reference: the command line, the metrics and the SQL schema.

`python -m dragoman.tools.reference cli > docs/reference/cli.md` writes one page. Tests compare the pages with the code.
`dragoman config doc` prints the pages about settings, `python -m dragoman.store.keys` the one about Redis.
"""

import sys
from collections.abc import Iterator, Mapping
from copy import copy
from importlib.resources import files
from typing import Any

import typer
from prometheus_client.metrics_core import Metric

from dragoman.cli import output
from dragoman.cli.main import COMMANDS, imported
from dragoman.gateway.counters import Counters
from dragoman.services.metrics import Metrics
from dragoman.store.ops import Ops

_HEAD = """\
# {title}

<!-- Made by `python -m dragoman.tools.reference {page}`; edit {source} instead. -->

{text}
"""
_CLI = """\
`dragoman COMMAND --help` prints the same text. These options are left out below:

- `--config FILE` reads settings from a file (default: `$DRAGOMAN_CONFIG`, or `config.toml` in the working directory).
- `--set KEY=VALUE` overrides one setting, and may be repeated. Both may also stand before the command.
- `--version`, `--help`.

The exit status is 0 for success, 1 for a failure and 2 for a wrong command line, unless a command says otherwise."""
_METRICS = """\
`/metrics` serves these in the Prometheus text format: on the admin port of each instance, and on the common port, where
an operator token is required if a secret is set. Times are in seconds, sizes in bytes. Counters start at 0 with the
process. [Monitor it](../guides/monitor.md) names those that are worth an alarm."""
_SQL = """\
Chat messages, conversations and accounts are stored in SQL: in a SQLite file or in PostgreSQL (`archive.url`). The
tables are the same in both; below is the SQL for SQLite. Migrations of the release create and change them:
[upgrade it](../guides/upgrade.md).

- A message is stored once: (`from_user_id`, `client_msg_id`) is unique. Its `id` is the `serverMsgId` of the protocol.
- `msg_seq` numbers the messages of a conversation from 1, without gaps, in commit order.
- `status` of a message is 0 saved, 1 delivered, 2 read. Cursors of a member never decrease.
- `fence` of a shard is the highest that has written: an instance with a lower fence writes nothing.
- A user with a valid token needs no row in `user`. Removing an account deletes its row; messages are never deleted.
- The table dragoman_migration records each applied migration: name, checksum and time."""


def registry() -> Iterator[Metric]:
    """Every metric of an instance, without values."""
    metrics = Metrics()
    metrics.registry.register(Ops())
    metrics.registry.register(Counters())
    return iter(metrics.registry.collect())


def metric_name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def metrics_page() -> str:
    rows = [
        f"| `{metric_name(metric)}` | {metric.type} | {_codes(metric._labelnames)} | {metric.documentation} |\n"  # type: ignore[attr-defined]
        for metric in sorted(registry(), key=lambda metric: metric.name)
    ]
    head = "| metric | type | labels | meaning |\n|---|---|---|---|\n"
    return _page("metrics", "Metrics", "the help texts in `src/dragoman`", _METRICS) + "\n" + head + "".join(rows)


def _codes(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def cli_page() -> str:
    parts = ["\n| command | purpose |\n|---|---|\n", *(f"| `dragoman {c.name}` | {c.summary} |\n" for c in COMMANDS)]
    for command in COMMANDS:
        parts += _helps(f"dragoman {command.name}", imported(command))
    return _page("cli", "Commands", "the commands in `src/dragoman/cli` and `src/dragoman/tools`", _CLI) + "".join(
        parts
    )


def _helps(path: str, command: Any) -> Iterator[str]:
    yield _help(path, command)
    if isinstance(commands := getattr(command, "commands", None), Mapping):
        for name, each in commands.items():
            yield from _helps(f"{path} {name}", each)


def _help(path: str, command: Any) -> str:
    """Without the options that every command has."""
    command = copy(command)
    command.add_help_option = False
    command.params = [each for each in command.params if not {"--config", "--set"} & set(each.opts)]
    text = command.get_help(typer.Context(command, info_name=path, terminal_width=100))
    return f"\n## `{path}`\n\n```text\n{text.rstrip()}\n```\n"


def sql_page() -> str:
    """The migrations for SQLite; those for PostgreSQL differ in types only."""
    folder = files("dragoman.archive") / "migrations" / "sqlite"
    migrations = sorted((file.name, file.read_text(encoding="utf-8")) for file in folder.iterdir())
    parts = [f"\n## {name.removesuffix('.sql')}\n\n```sql\n{text.rstrip()}\n```\n" for name, text in migrations]
    source = "the migrations in `src/dragoman/archive/migrations`"
    return _page("sql-schema", "SQL schema", source, _SQL) + "".join(parts)


def _page(page: str, title: str, source: str, text: str) -> str:
    return _HEAD.format(page=page, title=title, source=source, text=text)


PAGES = {"cli": cli_page, "metrics": metrics_page, "sql-schema": sql_page}

if __name__ == "__main__":
    output.block(PAGES[sys.argv[1]](), end="")
