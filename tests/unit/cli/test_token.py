import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from dragoman.cli.main import run
from dragoman.config.secrets import DEVELOPMENT_SECRET
from dragoman.gateway.authentication import Authenticator, Kind, Principal
from dragoman.services.chat.tokens import Tokens

SECRET = "a-secret-of-more-than-thirty-two-bytes"
OTHER = "another-secret-of-more-than-thirty-two-bytes"
KEEPER = Authenticator((SECRET,), "dragoman")
NAMES: dict[Kind, tuple[str, str]] = {
    "client": ("--subject", "ann"),
    "node": ("--node-id", "gpu-1"),
    "operator": ("--subject", "olga"),
}


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_SECURITY__SECRET", SECRET)


def made(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The token; it is all there is on standard output."""
    assert run(["token", *args]) == 0
    told = capsys.readouterr()
    (token,) = told.out.split()
    assert token not in told.err
    assert "valid until" in told.err
    return token


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(["token", *args]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    return told.err


def claims(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("kind", NAMES)
def test_a_token_opens_the_door_of_its_class_and_no_other(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    token = made(capsys, kind, *NAMES[kind])
    assert KEEPER.identify(kind, token) == Principal(kind, NAMES[kind][1], "default")
    for other in set(NAMES) - {kind}:
        with pytest.raises(Exception, match="the token is not one for"):
            KEEPER.identify(other, token)


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("kind", NAMES)
def test_a_tenant_and_a_lifetime_may_be_said(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    token = made(capsys, kind, *NAMES[kind], "--tenant", "acme", "--lifetime", "15m")
    assert KEEPER.identify(kind, token).tenant == "acme"
    assert claims(token)["exp"] - claims(token)["iat"] == 900
    assert abs(claims(token)["iat"] - time.time()) < 60


@pytest.mark.usefixtures("secret")
def test_a_user_of_chat_may_write_and_speak(capsys: pytest.CaptureFixture[str]) -> None:
    token = made(capsys, "client", "--user-id", "42")
    tokens = Tokens((SECRET,), "mini-im", 60, 60)
    assert tokens.read_access(token, time.time()).uid == 42
    assert Authenticator((SECRET,), "dragoman", chat=tokens).identify("client", token).subject == "42"


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("client",), "either --subject NAME or --user-id N"),
        (("client", "--subject", "a", "--user-id", "1"), "either --subject NAME or --user-id N"),
        (("client", "--user-id", "1", "--tenant", "t"), "does not go with --user-id"),
        (("client", "--user-id", str(2**63)), "--user-id is not above"),
        (("client", "--subject", "a\x1b"), "printable"),
        (("node", "--node-id", "a b"), "A node id takes"),
        (("node",), "--node-id"),
        (("operator",), "--subject"),
        (("operator", "--subject", "o", "--tenant", "a/b"), "is not a name"),
        (("operator", "--subject", "o", "--lifetime", "soon"), "is not a time like"),
        (("operator", "--subject", "o", "--lifetime", "0s"), "is not a time like"),
        (("operator", "--subject", "o", "--lifetime", "99999d"), "is not a time like"),
        (("operator", "--subject", "o", "--insecure-development-secret"), "A secret is set"),
    ],
)
def test_what_cannot_be_made_is_said_in_a_sentence(
    args: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why in refusal(capsys, *args)


def test_the_first_line_of_a_file_signs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text(f"{SECRET}\n{OTHER}\n")
    for way in (("--secret-file", str(file)), ("--set", f"security.secret_file={file}")):
        assert KEEPER.identify("operator", made(capsys, "operator", "--subject", "olga", *way)).subject == "olga"


def test_a_file_given_to_the_command_is_not_called_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(capsys, "operator", "--subject", "o", "--secret-file", "gone")
    assert "gone cannot be read" in told
    assert "security.secret_file" not in told


def test_with_nothing_to_sign_with_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(capsys, "client", "--subject", "ann")
    assert "No secret is set" in told
    assert "openssl rand -hex 32" in told


def test_the_secret_everybody_knows_is_used_only_when_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = made(capsys, "client", "--user-id", "7", "--insecure-development-secret")
    assert Tokens((DEVELOPMENT_SECRET,), "mini-im", 60, 60).read_access(told, time.time()).uid == 7
    monkeypatch.setenv("DRAGOMAN_SECURITY__SECRET", DEVELOPMENT_SECRET)
    assert "everybody can make tokens" in refusal(capsys, "client", "--subject", "ann")
    assert made(capsys, "client", "--subject", "ann", "--insecure-development-secret")
    assert "which others can reach" in refusal(
        capsys, "client", "--subject", "a", "--insecure-development-secret", "--set", "server.host=0.0.0.0"
    )


def test_a_secret_is_not_taken_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    told = refusal(capsys, "client", "--subject", "ann", "--set", f"security.secret={SECRET}")
    assert "is not given with --set" in told
    assert "DRAGOMAN_SECURITY__SECRET" in told
    assert SECRET not in told


@pytest.mark.parametrize("kind", NAMES)
def test_the_help_has_an_example(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["token", kind, "--help"]) == 0
    assert "For example:" in capsys.readouterr().out


@pytest.mark.usefixtures("secret")
def test_token_says_that_it_is_a_gateways_only_when_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert KEEPER.identify("client", made(capsys, "client", "--subject", "edge", "--gateway")).gateway
    assert "gateway" not in claims(made(capsys, "client", "--subject", "edge"))
    assert "--gateway does not go with --user-id" in refusal(capsys, "client", "--user-id", "7", "--gateway")
