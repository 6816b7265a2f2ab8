import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from dragoman.cli.main import run
from dragoman.config.secrets import DEVELOPMENT_SECRET
from dragoman.domain.rooms import Role, RoomClaim
from dragoman.gateway.authentication import Authenticator, Kind, Principal
from dragoman.services.chat.credentials import Tokens

SECRET = "a-secret-of-more-than-thirty-two-bytes"
OTHER = "another-secret-of-more-than-thirty-two-bytes"
AUTHENTICATOR = Authenticator((SECRET,), "dragoman")
NAMES: dict[Kind, tuple[str, str]] = {
    "client": ("--subject", "ann"),
    "node": ("--node-id", "gpu-1"),
    "operator": ("--subject", "olga"),
}


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_SECURITY__SECRET", SECRET)


def created(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The token, which is alone on standard output."""
    assert run(["token", *args]) == 0
    output = capsys.readouterr()
    (token,) = output.out.split()
    assert token not in output.err
    assert "valid until" in output.err
    return token


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(["token", *args]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    return output.err


def claims(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("kind", NAMES)
def test_token_is_accepted_for_its_class_only(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    token = created(capsys, kind, *NAMES[kind])
    assert AUTHENTICATOR.identify(kind, token) == Principal(kind, NAMES[kind][1], "default")
    for other in set(NAMES) - {kind}:
        with pytest.raises(Exception, match="the token is not one for"):
            AUTHENTICATOR.identify(other, token)


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("kind", NAMES)
def test_token_has_the_given_tenant_and_lifetime(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    token = created(capsys, kind, *NAMES[kind], "--tenant", "acme", "--lifetime", "15m")
    assert AUTHENTICATOR.identify(kind, token).tenant == "acme"
    assert claims(token)["exp"] - claims(token)["iat"] == 900
    assert abs(claims(token)["iat"] - time.time()) < 60


@pytest.mark.usefixtures("secret")
def test_token_of_a_chat_user_opens_chat_and_speech(capsys: pytest.CaptureFixture[str]) -> None:
    token = created(capsys, "client", "--user-id", "42")
    tokens = Tokens((SECRET,), "mini-im", 60, 60)
    assert tokens.read_access(token, time.time()).uid == 42
    assert Authenticator((SECRET,), "dragoman", chat=tokens).identify("client", token).subject == "42"


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("client",), "either --subject NAME or --user-id N"),
        (("client", "--subject", "a", "--user-id", "1"), "either --subject NAME or --user-id N"),
        (("client", "--user-id", "1", "--tenant", "t"), "cannot be combined with --user-id"),
        (("client", "--user-id", str(2**63)), "--user-id must not be above"),
        (("client", "--subject", "a\x1b"), "printable"),
        (("node", "--node-id", "a b"), "--node-id must be"),
        (("node",), "--node-id"),
        (("operator",), "--subject"),
        (("operator", "--subject", "o", "--tenant", "a/b"), "--tenant 'a/b' must be"),
        (("operator", "--subject", "o", "--lifetime", "soon"), "is not a time like"),
        (("operator", "--subject", "o", "--lifetime", "0s"), "is not a time like"),
        (("operator", "--subject", "o", "--lifetime", "99999d"), "is not a time like"),
        (("operator", "--subject", "o", "--insecure-development-secret"), "A secret is set"),
    ],
)
def test_wrong_options_are_refused_with_a_reason(
    args: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why in refusal(capsys, *args)


def test_first_line_of_the_secret_file_signs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text(f"{SECRET}\n{OTHER}\n")
    for way in (("--secret-file", str(file)), ("--set", f"security.secret_file={file}")):
        assert (
            AUTHENTICATOR.identify("operator", created(capsys, "operator", "--subject", "olga", *way)).subject == "olga"
        )


def test_error_of_a_secret_file_option_does_not_name_the_setting(capsys: pytest.CaptureFixture[str]) -> None:
    output = refusal(capsys, "operator", "--subject", "o", "--secret-file", "gone")
    assert "gone cannot be read" in output
    assert "security.secret_file" not in output


def test_token_without_a_secret_says_how_to_set_one(capsys: pytest.CaptureFixture[str]) -> None:
    output = refusal(capsys, "client", "--subject", "ann")
    assert "No secret is set" in output
    assert "openssl rand -hex 32" in output


def test_development_secret_is_used_only_when_requested(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = created(capsys, "client", "--user-id", "7", "--insecure-development-secret")
    assert Tokens((DEVELOPMENT_SECRET,), "mini-im", 60, 60).read_access(output, time.time()).uid == 7
    monkeypatch.setenv("DRAGOMAN_SECURITY__SECRET", DEVELOPMENT_SECRET)
    assert "publicly known development secret" in refusal(capsys, "client", "--subject", "ann")
    assert created(capsys, "client", "--subject", "ann", "--insecure-development-secret")
    assert "which others can reach" in refusal(
        capsys, "client", "--subject", "a", "--insecure-development-secret", "--set", "server.host=0.0.0.0"
    )


def test_secret_is_refused_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    output = refusal(capsys, "client", "--subject", "ann", "--set", f"security.secret={SECRET}")
    assert "is not accepted with --set" in output
    assert "DRAGOMAN_SECURITY__SECRET" in output
    assert SECRET not in output


@pytest.mark.parametrize("kind", NAMES)
def test_help_has_an_example(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", kind, "--help"]) == 0
    assert "Example:" in capsys.readouterr().out


@pytest.mark.usefixtures("secret")
def test_token_is_one_of_a_gateway_only_when_requested(capsys: pytest.CaptureFixture[str]) -> None:
    assert AUTHENTICATOR.identify("client", created(capsys, "client", "--subject", "edge", "--gateway")).gateway
    assert "gateway" not in claims(created(capsys, "client", "--subject", "edge"))
    assert "--gateway cannot be combined with --user-id" in refusal(capsys, "client", "--user-id", "7", "--gateway")


# ---------------------------------------------------------------- for one room


@pytest.mark.usefixtures("secret")
def test_token_for_one_room_has_its_role(capsys: pytest.CaptureFixture[str]) -> None:
    token = created(capsys, "client", "--subject", "ann", "--room", "r-1", "--role", "host")
    assert AUTHENTICATOR.identify("client", token).room_claim == RoomClaim("r-1", Role.HOST)
    token = created(capsys, "client", "--subject", "ann", "--room", "r-1")
    assert claims(token)["role"] == "speaker"


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--role", "host"), "--role is only valid with --room"),
        (("--room", "a/b"), "is not the id of a room"),
        (("--room", "r-1", "--role", "king"), "Choose one of: host, speaker, listener"),
    ],
)
def test_bad_room_or_role_is_refused(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refusal(capsys, "client", "--subject", "ann", *options)


@pytest.mark.usefixtures("secret")
def test_chat_user_has_no_room(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--user-id" in refusal(capsys, "client", "--user-id", "7", "--room", "r-1")
