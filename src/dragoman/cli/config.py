"""`dragoman config`: checks, shows and documents the settings."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli import output
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.settings import ConfigFile, Overrides, option, settings

if TYPE_CHECKING:
    from dragoman.config import Loaded

app = typer.Typer(no_args_is_help=True, help="Check, show and document the settings.")


@app.command()
def check(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    exposed: Annotated[
        bool, typer.Option("--exposed", help="Also check the requirements for a server on the internet.")
    ] = False,
    url: Annotated[
        str | None, option("--url", metavar="URL", help="With --exposed: also check this running server.")
    ] = None,
) -> None:
    """Check the settings, and show where they come from."""
    from dragoman.cli.token import check_secrets

    loaded = settings(ctx, config, override)
    check_secrets(loaded.config)
    for key, old in loaded.old_keys.items():
        output.line(f"{old} ({loaded.sources[key]}) is now {key}. The old name still works.")
    output.line(f"OK: {_origins(loaded)}.")
    if exposed:
        _check_exposed(loaded, url)
    elif url:
        raise Failure("--url is only valid with --exposed.", USAGE)


def _check_exposed(loaded: "Loaded", url: str | None) -> None:
    """Print one line for each requirement. Raises Failure if one is not met."""
    from http.client import HTTPException

    from dragoman.instance.exposed import check_configuration, probe

    results = check_configuration(loaded)
    if url is not None:
        if not url.startswith(("http://", "https://")):
            raise Failure("--url must begin with http:// or https://.", USAGE)
        try:
            results += probe(url)
        except (OSError, HTTPException, ValueError) as error:
            raise Failure(f"{url} does not answer: {error}.") from None
    for result in results:
        if not result.problems:
            output.line(f"ok       {result.name}: {result.requirement}")
        for problem in result.problems:
            output.line(f"problem  {result.name}: {problem.what}. To fix it: {problem.remedy}.")
    wrong = sum(bool(result.problems) for result in results)
    if wrong:
        raise Failure(f"{wrong} of {len(results)} requirements for a server on the internet are not met.")
    output.line(f"All {len(results)} requirements for a server on the internet are met.")


@app.command()
def show(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only settings that are not at their default.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: {key: {value, source, place}}.")] = False,
) -> None:
    """Print every setting and its source, without secrets."""
    loaded = settings(ctx, config, override)
    output.block(_json(loaded, changed) if as_json else _lines(loaded, changed))


@app.command()
def doc(
    example: Annotated[bool, typer.Option("--example", help="Print an example file instead.")] = False,
    limits: Annotated[bool, typer.Option("--limits", help="Print the table of all limits instead.")] = False,
) -> None:
    """Print the reference of all settings as Markdown."""
    from dragoman.config import reference

    page = reference.example if example else reference.limits_markdown if limits else reference.markdown
    output.block(page(), end="")


def _origins(loaded: "Loaded") -> str:
    found = Counter(source for source in loaded.sources.values() if source.origin != "default")
    variables = [source.place for source in found if source.origin == "env"]
    named = [f"{count} from {source}" for source, count in found.items() if source.origin == "file"]
    named += [f"{len(variables)} from the environment ({', '.join(variables)})"] if variables else []
    named += [f"{count} from {source}" for source, count in found.items() if source.origin == "flag"]
    return f"{', '.join(named)}; every other setting has its default" if named else "every setting has its default"


def _lines(loaded: "Loaded", changed: bool) -> str:
    """Lines of valid TOML, each with its source as a comment."""
    from dragoman.config import masked
    from dragoman.config.reference import toml_value

    rows = [(f"{key} = {toml_value(value)}", loaded.sources[key]) for key, value in masked(loaded.config).items()]
    rows = [(line, source) for line, source in rows if not changed or source.origin != "default"]
    width = min(72, max((len(line) for line, _ in rows), default=0))
    return "\n".join(f"{line:<{width}}  # {source}" for line, source in rows)


def _json(loaded: "Loaded", changed: bool) -> str:
    import msgspec

    from dragoman.config import masked

    sources = loaded.sources
    tree = {
        key: {"value": value, "source": sources[key].origin, "place": sources[key].place or None}
        for key, value in masked(loaded.config).items()
        if not changed or sources[key].origin != "default"
    }
    return msgspec.json.format(msgspec.json.encode(tree)).decode()
