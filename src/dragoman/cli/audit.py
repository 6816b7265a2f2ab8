"""`dragoman audit`: what operators changed, or tried to, the newest first."""

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer

from dragoman.cli import output
from dragoman.cli.api import Api, Token, Url
from dragoman.cli.settings import ConfigFile, Overrides, settings

PAGE = 200


def audit(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show who changed what, when, on what, and what became of it: the last ten thousand changes are kept."""
    rows = _entries(Api(settings(ctx, config, override).config, url, token), count)
    if as_json:
        output.as_json(rows, indent=2)
        return
    for row in rows:
        output.line(_line(row))
    if not rows:
        output.line("Nothing was changed yet.")


def _entries(api: Api, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    before = ""
    while len(found) < count:
        asked = f"count={min(PAGE, count - len(found))}"
        told = api.get(f"/api/v1/audit?{asked}{f'&before={quote(before)}' if before else ''}")
        found += told["entries"]
        before = told["next"]
        if not before:
            break
    return found


def _line(row: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at_ms"] / 1000))
    who = f"{row['tenant']}/{row['who']}" if row.get("tenant") else row["who"] or "unnamed"
    detail = f" ({row['detail']})" if row["detail"] else ""
    address = f"  from {row['address']}" if row.get("address") else ""
    return f"{when}  {who}  {row['action']}  {row['target']}{detail}  {row.get('result') or 'done'}{address}"
