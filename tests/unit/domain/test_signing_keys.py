from dragoman.domain.signing_keys import SigningKeys, name_of

ONE, TWO = "the-first-secret", "the-second-secret"


def test_first_secret_signs_and_all_are_listed() -> None:
    keys = SigningKeys(("", ONE, "", TWO))
    assert keys.signing == ONE
    assert list(keys) == [ONE, TWO]
    assert len(keys) == 2


def test_empty_keys_are_false() -> None:
    assert not SigningKeys()
    assert not SigningKeys(("", ""))


def test_change_is_true_only_if_secrets_or_order_differ() -> None:
    keys = SigningKeys((ONE,))
    assert not keys.change((ONE, ""))
    assert keys.change((ONE, TWO))
    assert keys.change((TWO, ONE))
    assert keys.signing == TWO


def test_change_keeps_the_secrets_when_there_are_no_new_ones() -> None:
    keys = SigningKeys((ONE,))
    assert not keys.change(("",))
    assert list(keys) == [ONE]


def test_names_do_not_reveal_secrets() -> None:
    keys = SigningKeys((ONE, TWO))
    assert keys.names() == [name_of(ONE), name_of(TWO)]
    assert len(set(keys.names())) == 2
    assert all(len(name) == 8 and name not in ONE + TWO for name in keys.names())
