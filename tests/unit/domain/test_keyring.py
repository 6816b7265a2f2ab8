from dragoman.domain.keyring import Keyring, name_of

ONE, TWO = "the-first-secret", "the-second-secret"


def test_the_first_secret_signs_and_all_are_there() -> None:
    ring = Keyring(("", ONE, "", TWO))
    assert ring.signing == ONE
    assert list(ring) == [ONE, TWO]
    assert len(ring) == 2


def test_an_empty_ring_counts_as_none() -> None:
    assert not Keyring()
    assert not Keyring(("", ""))


def test_a_change_is_told_only_when_it_is_one() -> None:
    ring = Keyring((ONE,))
    assert not ring.change((ONE, ""))
    assert ring.change((ONE, TWO))
    assert ring.change((TWO, ONE))
    assert ring.signing == TWO


def test_the_last_secret_cannot_be_taken_away() -> None:
    ring = Keyring((ONE,))
    assert not ring.change(("",))
    assert list(ring) == [ONE]


def test_secrets_are_named_without_being_told() -> None:
    ring = Keyring((ONE, TWO))
    assert ring.names() == [name_of(ONE), name_of(TWO)]
    assert len(set(ring.names())) == 2
    assert all(len(name) == 8 and name not in ONE + TWO for name in ring.names())
