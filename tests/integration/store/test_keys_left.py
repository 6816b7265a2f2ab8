"""The check that every other test here is looked at with."""

from dragoman.store.keys import Keys
from dragoman.tools.leftover_keys import FOREVER, Left, leaks

P = Keys("t-1")


def test_a_key_may_live_for_ever_only_if_the_table_says_so() -> None:
    fine = [Left(P.inbox("i"), FOREVER), Left(P.nodes_all, FOREVER), Left(P.job("j"), 1000), Left(P.open("i"), 5)]
    assert leaks(fine, "t-1") == []
    assert leaks([Left(P.job("j"), FOREVER)], "t-1") == [
        "t-1:v1:jobs:{job:j}:fsm has no TTL, though its life is 'TTL job'"
    ]


def test_a_key_that_is_not_in_the_table_is_a_leak_whatever_its_life() -> None:
    assert leaks([Left("t-1:v1:surprise", 1000)], "t-1") == ["t-1:v1:surprise is not in the key table"]
    assert leaks([Left("t-1:nodes:owner:n", 1000)], "t-1") != [], "the braces belong to the name"


def test_a_key_of_a_turn_is_a_leak() -> None:
    assert leaks([Left(P.turn("t"), FOREVER)], "t-1") == ["scheduler:turn:t is left of a turn that has ended"]
    assert len(leaks([Left(P.session_turn("s"), FOREVER)], "t-1")) == 1
