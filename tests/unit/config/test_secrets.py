from pathlib import Path

import pytest

from dragoman.config import load
from dragoman.config.secrets import DEVELOPMENT_SECRET, BadSecrets, chat_secrets, has_secret, secrets_of

SECRET = "a-secret-of-more-than-thirty-two-bytes"
OLD = "an-old-secret-of-more-than-thirty-two-bytes"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "secrets"


def refusal(file: Path, **flags: object) -> str:
    named = {name.replace("__", "."): value for name, value in flags.items()}
    with pytest.raises(BadSecrets) as refused:
        secrets_of(load(flags={"security.secret_file": str(file), **named}))
    assert str(file) in str(refused.value)
    return str(refused.value)


def test_chat_tokens_are_signed_with_the_secret_and_those_of_the_previous_one_are_accepted() -> None:
    config = load(flags={"security.secret": SECRET, "security.previous_secret": OLD})
    assert chat_secrets(config) == secrets_of(config) == (SECRET, OLD)
    assert has_secret(config)


def test_with_no_secret_set_they_are_signed_with_the_development_secret() -> None:
    config = load()
    assert chat_secrets(config) == (DEVELOPMENT_SECRET,) == ("change-me-please-change-me-please-change-me",)
    assert secrets_of(config) == ()
    assert not has_secret(config)


def test_a_file_holds_one_secret_a_line_the_first_to_sign_with(file: Path) -> None:
    config = load(flags={"security.secret_file": str(file)})
    file.write_text(f"  {SECRET}  \r\n\n{OLD}\n")
    assert secrets_of(config) == chat_secrets(config) == (SECRET, OLD)
    file.write_text(OLD)
    assert secrets_of(config) == (OLD,)
    assert has_secret(config)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "holds no secrets"),
        (b"\n  \n", "holds no secrets"),
        (b"hunter2\n", "too short"),
        (f"{SECRET}\nhunter2\n".encode(), "too short"),
        (f"{SECRET}\n{OLD}\n{SECRET}x".encode(), "holds 3 secrets"),
        (b"\xff" * 40, "is not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_never_quoted(file: Path, text: bytes, why: str) -> None:
    file.write_bytes(text)
    sentence = refusal(file)
    assert why in sentence
    assert "hunter2" not in sentence
    assert SECRET not in sentence


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    assert "no such file" in refusal(file)


@pytest.mark.parametrize("where", ["server__host", "server__admin_host"])
@pytest.mark.parametrize("text", [DEVELOPMENT_SECRET, f"{SECRET}\n{DEVELOPMENT_SECRET}"])
def test_a_file_with_the_development_secret_is_for_loopback_only(file: Path, text: str, where: str) -> None:
    file.write_text(text)
    assert "0.0.0.0" in refusal(file, **{where: "0.0.0.0"})
    assert DEVELOPMENT_SECRET in secrets_of(load(flags={"security.secret_file": str(file)}))
