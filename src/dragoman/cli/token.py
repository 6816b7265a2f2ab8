"""`dragoman token`: makes credentials of clients, nodes and operators, each a class of its own, and revokes them.

The token alone goes to standard output, so that it can be put where it belongs; what there is to say about it goes to
standard error. The secret comes from the configuration, its environment or a file, never from the command line.
"""

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from dragoman.cli import output
from dragoman.cli.api import Api, Token, Url
from dragoman.cli.failure import USAGE, Failure
from dragoman.cli.secrets import made, signing_secret
from dragoman.cli.settings import ConfigFile, Overrides, settings

if TYPE_CHECKING:
    from dragoman.config import Config

app = typer.Typer(
    no_args_is_help=True,
    help="Make credentials of clients, nodes and operators, and revoke them. A token of one class is refused wherever "
    "another class is asked for.",
)

UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MOST_S: Final = 3650 * 86_400
_LIFETIME = re.compile(r"([0-9]{1,9})([smhd])")

Lifetime = Annotated[
    str, typer.Option("--lifetime", metavar="TIME", help="How long it is valid: a number and s, m, h or d.")
]
Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="On whose behalf.", show_default="default")]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        help="Sign with the first line of this file instead of the configured secret.",
        show_default=False,
    ),
]
Development = Annotated[
    bool,
    typer.Option(
        "--insecure-development-secret",
        help="Where no secret is set: sign with the one that everybody knows.",
    ),
]


@app.command()
def client(
    ctx: typer.Context,
    subject: Annotated[
        str, typer.Option("--subject", metavar="NAME", help="Who it is: sessions belong to it.", show_default=False)
    ] = "",
    user_id: Annotated[
        int | None,
        typer.Option(
            "--user-id",
            min=1,
            metavar="N",
            help="Of a user of chat, instead: opens chat, and speech with security.chat_tokens_for_speech. Over "
            "as soon as that user logs in with a password.",
            show_default=False,
        ),
    ] = None,
    gateway: Annotated[
        bool,
        typer.Option(
            "--gateway",
            help="Of an API gateway, which speaks for many: its sessions outlive their connections, and it may have "
            "more of them.",
        ),
    ] = False,
    tenant: Tenant = "",
    lifetime: Lifetime = "1h",
    secret_file: SecretFile = None,
    insecure_development_secret: Development = False,
    config: ConfigFile = None,
    override: Overrides = None,
) -> None:
    """Make a token for who speaks, or with --user-id for a user of chat.

    For example: DRAGOMAN_CLIENT_TOKEN=$(dragoman token client --subject ann) dragoman say speech.wav
    """
    if bool(subject) == (user_id is not None):
        raise Failure("Who is it for? Give either --subject NAME or --user-id N.", USAGE)
    if user_id is not None and tenant:
        raise Failure("--tenant does not go with --user-id: users of chat belong to no tenant yet.", USAGE)
    if user_id is not None and gateway:
        raise Failure("--gateway does not go with --user-id: a user of chat speaks for nobody else.", USAGE)
    mint = _Mint(settings(ctx, config, override).config, secret_file, insecure_development_secret, lifetime)
    if user_id is not None:
        mint.chat(user_id)
    else:
        mint.tell("client", subject, tenant, gateway=gateway)


@app.command()
def node(
    ctx: typer.Context,
    node_id: Annotated[str, typer.Option("--node-id", metavar="ID", help="The node it is bound to; it gets this id.")],
    tenant: Tenant = "",
    lifetime: Lifetime = "30d",
    secret_file: SecretFile = None,
    insecure_development_secret: Development = False,
    config: ConfigFile = None,
    override: Overrides = None,
) -> None:
    """Make a token for one node; whoever has it can be that node and no other.

    For example: DRAGOMAN_NODE_TOKEN=$(dragoman token node --node-id gpu-1) dragoman node --node-id gpu-1
    """
    mint = _Mint(settings(ctx, config, override).config, secret_file, insecure_development_secret, lifetime)
    mint.tell("node", node_id, tenant)


@app.command()
def operator(
    ctx: typer.Context,
    subject: Annotated[str, typer.Option("--subject", metavar="NAME", help="Who it is: so the audit names them.")],
    tenant: Tenant = "",
    lifetime: Lifetime = "8h",
    secret_file: SecretFile = None,
    insecure_development_secret: Development = False,
    config: ConfigFile = None,
    override: Overrides = None,
) -> None:
    """Make a token for an operator: console, API, metrics, dead letters, switches.

    For example: export DRAGOMAN_OPERATOR_TOKEN=$(dragoman token operator --subject olga)
    """
    mint = _Mint(settings(ctx, config, override).config, secret_file, insecure_development_secret, lifetime)
    mint.tell("operator", subject, tenant)


@app.command()
def revoke(
    ctx: typer.Context,
    revoked: Annotated[
        str,
        typer.Argument(metavar="[TOKEN]", help="The token; - reads it from standard input.", show_default=False),
    ] = "",
    principal: Annotated[
        str,
        typer.Option(
            "--principal",
            metavar="NAME",
            help="All tokens of a principal, also later ones, until it is allowed again: client:NAME, node:ID, "
            "operator:NAME (with TENANT/ before the name if it is not of the tenant default), chat:LOGIN or user:ID.",
            show_default=False,
        ),
    ] = "",
    jti: Annotated[
        str, typer.Option("--jti", metavar="ID", help="The token with this `jti` claim.", show_default=False)
    ] = "",
    lifetime: Annotated[
        str,
        typer.Option(
            "--lifetime",
            metavar="TIME",
            help="With --jti: how long the token is valid at most. The revocation is kept for so long; without, until "
            "it is allowed again.",
            show_default=False,
        ),
    ] = "",
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Revoke one token, or all tokens of a principal, at all instances.

    Open connections with that token, or of that principal, are closed within a second, and it is refused from now on.
    The sessions of a revoked principal end.

    For example: dragoman token revoke --principal node:gpu-1
    """
    if sum(map(bool, (revoked, principal, jti))) != 1:
        raise Failure("What is to be revoked? Give a TOKEN, --principal NAME or --jti ID.", USAGE)
    if lifetime and not jti:
        raise Failure("--lifetime goes with --jti: a token says itself how long it is valid.", USAGE)
    body: dict[str, object] = {"jti": jti, "ttl_s": seconds(lifetime) if lifetime else 0}
    if revoked:
        body = {"token": sys.stdin.readline().strip() if revoked == "-" else revoked}
    elif principal:
        body = {"principal": principal}
    answer = Api(settings(ctx, config, override).config, url, token).post("/api/v1/revocations", body)
    output.line(f"{answer['name']} is revoked {_until(answer['until_ms'])}.")


@app.command()
def allow(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="As `dragoman token revoked` prints it.", metavar="NAME")],
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Take back a revocation: the token, or the tokens of the principal, are accepted again until they expire."""
    Api(settings(ctx, config, override).config, url, token).delete(f"/api/v1/revocations/{quote(name, safe='')}")
    output.line(f"{name} is allowed again.")


@app.command("revoked")
def list_revoked(
    ctx: typer.Context,
    config: ConfigFile = None,
    override: Overrides = None,
    url: Url = None,
    token: Token = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the tokens and principals that are revoked."""
    api, rows, after = Api(settings(ctx, config, override).config, url, token), list[dict[str, Any]](), ""
    while not rows or after:
        page = api.get(f"/api/v1/revocations?count=200&after={quote(after, safe='')}")
        rows, after = rows + page["entries"], page["next"]
        if not rows:
            break
    if as_json:
        output.as_json(rows, indent=2)
        return
    for row in rows:
        by = f" by {row['by']}" if row["by"] else ""
        output.line(f"{_time(row['at_ms'])}  {row['name']}  {_until(row['until_ms'])}{by}")
    if not rows:
        output.line("Nothing is revoked.")


def _until(until_ms: int) -> str:
    return f"until it expires at {_time(until_ms)}" if until_ms else "until it is allowed again"


def _time(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


class _Mint:
    def __init__(self, config: "Config", file: Path | None, development: bool, lifetime: str) -> None:
        self._config, self._lifetime_s = config, seconds(lifetime)
        self._secret = _secret(config, file, development)

    def tell(self, kind: str, subject: str, tenant: str, *, gateway: bool = False) -> None:
        from dragoman.gateway.authentication import MAX_SUBJECT, NODE_ID, TENANT

        if kind == "node" and not NODE_ID.fullmatch(subject):
            raise Failure("A node id takes 1 to 64 letters, digits or any of . _ -", USAGE)
        if tenant and not TENANT.fullmatch(tenant):
            raise Failure(f"--tenant {tenant!r} is not a name: 1 to 64 letters, digits or any of . _ : -", USAGE)
        if not subject.strip() or not subject.isprintable() or len(subject) > MAX_SUBJECT:
            raise Failure(f"Whose token it is takes 1 to {MAX_SUBJECT} printable characters.", USAGE)
        self._print(
            made(self._config, kind, subject, self._lifetime_s, tenant, self._secret, gateway=gateway),
            f"{'gateway' if gateway else kind} {subject!r} of tenant {tenant or 'default'!r}",
        )

    def chat(self, user_id: int) -> None:
        from dragoman.protocol.chat import MAX_ID
        from dragoman.services.chat.tokens import Tokens

        if user_id > MAX_ID:
            raise Failure(f"--user-id is not above {MAX_ID}.", USAGE)
        tokens = Tokens((self._secret,), self._config.chat.issuer, self._lifetime_s, self._lifetime_s)
        self._print(tokens.access(user_id, 0, time.time()), f"user {user_id} of chat")

    def _print(self, token: str, whose: str) -> None:
        ends = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() + self._lifetime_s))
        output.error(f"A token for {whose}, valid until {ends}. Whoever has it is taken for them.")
        output.line(token)


def _secret(config: "Config", file: Path | None, development: bool) -> str:
    from dragoman.config.secrets import DEVELOPMENT_SECRET

    secret = signing_secret(config, file)
    if not secret and not development:
        raise Failure(
            "No secret is set, so there is nothing to sign with. On this machine alone no token is needed; "
            "where others can reach Dragoman, set security.secret_file, or DRAGOMAN_SECURITY__SECRET to what "
            "`openssl rand -hex 32` prints.",
            USAGE,
        )
    if secret == DEVELOPMENT_SECRET and not development:
        raise Failure(
            "The secret is the development secret, with which everybody can make tokens: set another, or, to try "
            "things on this machine alone, say --insecure-development-secret.",
            USAGE,
        )
    if secret and development and secret != DEVELOPMENT_SECRET:
        raise Failure("A secret is set: --insecure-development-secret is for where none is.", USAGE)
    return secret or DEVELOPMENT_SECRET


def seconds(lifetime: str) -> int:
    found = _LIFETIME.fullmatch(lifetime.strip())
    seconds = int(found[1]) * UNITS_S[found[2]] if found is not None else 0
    if not 1 <= seconds <= MOST_S:
        raise Failure(f"--lifetime {lifetime!r} is not a time like 90s, 15m, 8h or 30d, of at most 3650d.", USAGE)
    return seconds
