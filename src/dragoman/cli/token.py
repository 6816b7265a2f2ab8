"""`dragoman token`: creates and revokes tokens of clients, nodes and operators.

Standard output holds the token alone, so that a shell can assign it; the explanation goes to standard error. The secret
comes from the configuration, the environment or a file, never from the command line, which every user of the machine
can read.
"""

import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dragoman.cli import output
from dragoman.cli.api import Api, AsJson, passing, segment, with_api
from dragoman.cli.output import USAGE, Failure
from dragoman.cli.settings import ConfigFile, Overrides, option, settings

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.domain.rooms import RoomClaim
    from dragoman.gateway.authentication import Kind

app = typer.Typer(
    no_args_is_help=True,
    help="Create and revoke tokens of clients, nodes and operators. A token of one class is refused where another "
    "class is required.",
)

UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_LIFETIME_S: Final = 3650 * 86_400
_LIFETIME = re.compile(r"([0-9]{1,9})([smhd])")

Lifetime = Annotated[
    str, typer.Option("--lifetime", metavar="TIME", help="How long the token is valid: a number and s, m, h or d.")
]
Tenant = Annotated[
    str, typer.Option("--tenant", metavar="NAME", help="The tenant that the token belongs to.", show_default="default")
]
SecretFile = Annotated[
    Path | None,
    option(
        "--secret-file", metavar="FILE", help="Sign with the first line of this file instead of the configured secret."
    ),
]
Development = Annotated[
    bool,
    typer.Option(
        "--insecure-development-secret", help="If no secret is set, sign with the publicly known development secret."
    ),
]


@dataclass(frozen=True, slots=True)
class _Issuer:
    """Creates tokens, and prints them."""

    config: "Config"
    secret_file: Path | None
    development: bool

    def principal(
        self,
        kind: "Kind",
        subject: str,
        tenant: str,
        lifetime: str,
        *,
        gateway: bool = False,
        room_claim: "RoomClaim | None" = None,
    ) -> None:
        from dragoman.gateway.authentication import MAX_SUBJECT, NODE_ID, TENANT

        lifetime_s, secret = seconds(lifetime), self._secret()
        if kind == "node" and not NODE_ID.fullmatch(subject):
            raise Failure("--node-id must be 1 to 64 letters, digits or any of . _ -", USAGE)
        if tenant and not TENANT.fullmatch(tenant):
            raise Failure(f"--tenant {tenant!r} must be 1 to 64 letters, digits or any of . _ : -", USAGE)
        if not subject.strip() or not subject.isprintable() or len(subject) > MAX_SUBJECT:
            raise Failure(f"The name must be 1 to {MAX_SUBJECT} printable characters.", USAGE)
        options: Any = {"gateway": gateway, "room_claim": room_claim}
        token = signed_token(self.config, kind, subject, lifetime_s, tenant, secret, **options)
        where = "" if room_claim is None else f", {room_claim.role} of room {room_claim.room}"
        what = f"{'gateway' if gateway else kind} {subject!r} of tenant {tenant or 'default'!r}{where}"
        _print(token, lifetime_s, what)

    def chat(self, user_id: int, lifetime: str) -> None:
        from dragoman.protocol.chat import MAX_ID
        from dragoman.services.chat.credentials import Tokens

        lifetime_s, secret = seconds(lifetime), self._secret()
        if user_id > MAX_ID:
            raise Failure(f"--user-id must not be above {MAX_ID}.", USAGE)
        tokens = Tokens((secret,), self.config.chat.issuer, lifetime_s, lifetime_s)
        _print(tokens.access(user_id, 0, time.time()), lifetime_s, f"chat user {user_id}")

    def _secret(self) -> str:
        from dragoman.config.secrets import DEVELOPMENT_SECRET

        secret = signing_secret(self.config, self.secret_file)
        if not secret and not self.development:
            raise Failure(
                "No secret is set, so a token cannot be signed. A server for this machine alone needs no tokens. "
                "Otherwise set security.secret_file, or set DRAGOMAN_SECURITY__SECRET to the output of "
                "`openssl rand -hex 32`.",
                USAGE,
            )
        if secret == DEVELOPMENT_SECRET and not self.development:
            raise Failure(
                "The secret is the publicly known development secret. Set another one, or give "
                "--insecure-development-secret if only this machine can reach the server.",
                USAGE,
            )
        if secret and self.development and secret != DEVELOPMENT_SECRET:
            raise Failure("A secret is set. Leave out --insecure-development-secret.", USAGE)
        return secret or DEVELOPMENT_SECRET


@passing
def with_issuer(
    ctx: typer.Context,
    secret_file: SecretFile = None,
    insecure_development_secret: Development = False,
    config: ConfigFile = None,
    override: Overrides = None,
) -> _Issuer:
    """Decorates a command that gets an `_Issuer`, and has the options of its secret."""
    return _Issuer(settings(ctx, config, override).config, secret_file, insecure_development_secret)


def _print(token: str, lifetime_s: int, principal: str) -> None:
    ends = output.date((time.time() + lifetime_s) * 1000)
    output.error(f"Token for {principal}, valid until {ends}. Keep it secret: whoever has it acts as this principal.")
    output.line(token)


@app.command()
@with_issuer
def client(
    issuer: _Issuer,
    subject: Annotated[
        str, option("--subject", metavar="NAME", help="Name of the client; its sessions belong to it.")
    ] = "",
    user_id: Annotated[
        int | None,
        typer.Option(
            "--user-id",
            min=1,
            metavar="N",
            help="Id of a chat user, instead of --subject. The token opens chat, and speech if "
            "security.chat_tokens_for_speech is set. It is invalid as soon as that user logs in with a password.",
            show_default=False,
        ),
    ] = None,
    gateway: Annotated[
        bool,
        typer.Option(
            "--gateway",
            help="For an API gateway, which has many clients: its sessions outlive their connections, and it may open "
            "more of them.",
        ),
    ] = False,
    room: Annotated[
        str, option("--room", metavar="ID", help="Only for this room: the token joins it and no other.")
    ] = "",
    role: Annotated[
        str,
        typer.Option("--role", metavar="ROLE", help="With --room: host, speaker or listener.", show_default="speaker"),
    ] = "",
    tenant: Tenant = "",
    lifetime: Lifetime = "1h",
) -> None:
    """Create a token for a speech client, or with --user-id for a chat user.

    Example: DRAGOMAN_CLIENT_TOKEN=$(dragoman token client --subject ann) dragoman say speech.wav
    """
    if bool(subject) == (user_id is not None):
        raise Failure("Give either --subject NAME or --user-id N.", USAGE)
    if user_id is not None and tenant:
        raise Failure("--tenant cannot be combined with --user-id: chat users belong to no tenant.", USAGE)
    if user_id is not None and gateway:
        raise Failure("--gateway cannot be combined with --user-id: a chat user is not a gateway.", USAGE)
    if user_id is not None and (room or role):
        raise Failure("--room and --role cannot be combined with --user-id: give --subject.", USAGE)
    if user_id is not None:
        issuer.chat(user_id, lifetime)
    else:
        issuer.principal("client", subject, tenant, lifetime, gateway=gateway, room_claim=_room_claim(room, role))


@app.command()
@with_issuer
def node(
    issuer: _Issuer,
    node_id: Annotated[
        str, typer.Option("--node-id", metavar="ID", help="Id of the node; the token is valid for this id only.")
    ],
    tenant: Tenant = "",
    lifetime: Lifetime = "30d",
) -> None:
    """Create a token for one node.

    Example: DRAGOMAN_NODE_TOKEN=$(dragoman token node --node-id gpu-1) dragoman node --node-id gpu-1
    """
    issuer.principal("node", node_id, tenant, lifetime)


@app.command()
@with_issuer
def operator(
    issuer: _Issuer,
    subject: Annotated[
        str, typer.Option("--subject", metavar="NAME", help="Name of the operator, as the audit shows it.")
    ],
    tenant: Tenant = "",
    lifetime: Lifetime = "8h",
) -> None:
    """Create a token for an operator: console, API, metrics, dead letters, switches.

    Example: export DRAGOMAN_OPERATOR_TOKEN=$(dragoman token operator --subject olga)
    """
    issuer.principal("operator", subject, tenant, lifetime)


@app.command()
@with_api
def revoke(
    api: Api,
    revoked: Annotated[
        str,
        typer.Argument(metavar="[TOKEN]", help="The token, or - to read it from standard input.", show_default=False),
    ] = "",
    principal: Annotated[
        str,
        typer.Option(
            "--principal",
            metavar="NAME",
            help="All tokens of a principal, including later ones, until it is allowed again: client:NAME, node:ID, "
            "operator:NAME (with TENANT/ before the name, except for the tenant default), chat:LOGIN or user:ID.",
            show_default=False,
        ),
    ] = "",
    jti: Annotated[str, option("--jti", metavar="ID", help="The token with this `jti` claim.")] = "",
    lifetime: Annotated[
        str,
        typer.Option(
            "--lifetime",
            metavar="TIME",
            help="With --jti: how long to keep the revocation, at least as long as the token is valid. Without it, "
            "until it is allowed again.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Revoke one token, or all tokens of a principal, on all instances.

    Open connections with that token or of that principal are closed within a second, and new ones are refused. The
    sessions of a revoked principal end.

    Example: dragoman token revoke --principal node:gpu-1
    """
    if sum(map(bool, (revoked, principal, jti))) != 1:
        raise Failure("Give one of TOKEN, --principal NAME and --jti ID.", USAGE)
    if lifetime and not jti:
        raise Failure("--lifetime is only valid with --jti: a token contains its own expiry.", USAGE)
    body: dict[str, object] = {"jti": jti, "ttl_s": seconds(lifetime) if lifetime else 0}
    if revoked:
        body = {"token": sys.stdin.readline().strip() if revoked == "-" else revoked}
    elif principal:
        body = {"principal": principal}
    answer = api.post("/api/v1/revocations", body)
    output.line(f"{answer['name']} is revoked {_until(answer['until_ms'])}.")


@app.command()
@with_api
def allow(
    api: Api,
    name: Annotated[str, typer.Argument(help="As `dragoman token revoked` prints it.", metavar="NAME")],
) -> None:
    """Undo a revocation: the token, or the tokens of the principal, are accepted again until they expire."""
    api.delete(f"/api/v1/revocations/{segment(name)}")
    output.line(f"{name} is allowed again.")


@app.command("revoked")
@with_api
def list_revoked(
    api: Api,
    as_json: AsJson = False,
) -> None:
    """List the revoked tokens and principals."""
    rows, after = list[dict[str, Any]](), ""
    while not rows or after:
        page = api.get(f"/api/v1/revocations?count=200&after={segment(after)}")
        rows, after = rows + page["entries"], page["next"]
        if not rows:
            break
    if as_json:
        output.as_json(rows)
        return
    for row in rows:
        by = f" by {row['by']}" if row["by"] else ""
        output.line(f"{output.date(row['at_ms'])}  {row['name']}  {_until(row['until_ms'])}{by}")
    if not rows:
        output.line("Nothing is revoked.")


def _until(until_ms: int) -> str:
    return f"until it expires at {output.date(until_ms)}" if until_ms else "until it is allowed again"


def _room_claim(room: str, role: str) -> "RoomClaim | None":
    from dragoman.domain.rooms import Role, RoomClaim
    from dragoman.gateway.authentication import ROOM_ID

    if role and not room:
        raise Failure("--role is only valid with --room: it is the role in that room.", USAGE)
    if not room:
        return None
    if not ROOM_ID.fullmatch(room):
        raise Failure(f"--room {room!r} is not the id of a room, as `dragoman room list` prints it.", USAGE)
    if role and role not in list(Role):
        raise Failure(f"--role {role!r} is unknown. Choose one of: {', '.join(Role)}.", USAGE)
    return RoomClaim(room, Role(role or Role.SPEAKER))


def seconds(lifetime: str) -> int:
    found = _LIFETIME.fullmatch(lifetime.strip())
    seconds = int(found[1]) * UNITS_S[found[2]] if found is not None else 0
    if not 1 <= seconds <= MAX_LIFETIME_S:
        raise Failure(f"--lifetime {lifetime!r} is not a time like 90s, 15m, 8h or 30d, of at most 3650d.", USAGE)
    return seconds


# -- secrets and signing


def check_secrets(config: "Config") -> None:
    """End the command before the server listens if the file of secrets cannot be used."""
    from dragoman.config.secrets import BadSecrets, secrets_of

    try:
        secrets_of(config)
    except BadSecrets as error:
        raise Failure(str(error), USAGE) from None


def signing_secret(config: "Config", file: Path | None = None) -> str:
    """The secret that signs: the first one of `file`, or the configured one; "" if none is set."""
    from dragoman.config.secrets import BadSecrets, read_secrets, secrets_of

    try:
        found = read_secrets(file) if file is not None else secrets_of(config)
    except BadSecrets as error:
        # The file of an option is not the one of the setting.
        sentence = str(error).removeprefix("security.secret_file ") if file is not None else str(error)
        raise Failure(sentence, USAGE) from None
    return found[0] if found else ""


def signed_token(
    config: "Config",
    kind: "Kind",
    subject: str,
    lifetime_s: float,
    tenant: str = "",
    secret: str = "",
    *,
    gateway: bool = False,
    room_claim: "RoomClaim | None" = None,
) -> str:
    """A token of `kind`, signed with `secret` or with the configured secret."""
    from dragoman.gateway import authentication

    secret, issuer = secret or signing_secret(config), config.security.issuer
    return authentication.signed_token(
        secret, issuer, kind, subject, lifetime_s, tenant, gateway=gateway, room_claim=room_claim
    )
