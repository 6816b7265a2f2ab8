from dragoman.config import load
from dragoman.config.secrets import DEVELOPMENT_SECRET, chat_secrets, signs_with_the_development_secret

SECRET = "a-secret-of-more-than-thirty-two-bytes"
OLD = "an-old-secret-of-more-than-thirty-two-bytes"


def test_chat_tokens_are_signed_with_the_secret_and_those_of_the_previous_one_are_accepted() -> None:
    config = load(flags={"security.secret": SECRET, "security.previous_secret": OLD})
    assert chat_secrets(config) == (SECRET, OLD)
    assert not signs_with_the_development_secret(config)


def test_with_no_secret_set_they_are_signed_with_the_development_secret() -> None:
    config = load()
    assert chat_secrets(config) == (DEVELOPMENT_SECRET,) == ("change-me-please-change-me-please-change-me",)
    assert signs_with_the_development_secret(config)


def test_the_development_secret_set_by_hand_is_the_same() -> None:
    assert signs_with_the_development_secret(load(flags={"security.secret": DEVELOPMENT_SECRET}))
