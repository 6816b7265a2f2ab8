from time import monotonic

import pytest

from dragoman.services.chat.holding import Holding, LostShard

HERE, THERE = "i0|1", "i1|7"


def holding(*, left_behind: str = "") -> Holding:
    return Holding(0, "i0", 3, monotonic() + 60, left_behind)


def test_a_message_may_go_ahead_of_being_saved_when_nothing_of_its_sender_is_under_way() -> None:
    assert holding().may_push_now(1, 2, HERE)


def test_nothing_is_pushed_ahead_to_nobody() -> None:
    assert not holding().may_push_now(1, 2, "")


def test_nothing_is_pushed_ahead_of_what_another_holder_left() -> None:
    held = holding(left_behind="9-1")
    assert not held.may_push_now(1, 2, HERE)
    held.nothing_to_save()
    assert held.may_push_now(1, 2, HERE)


def test_once_the_last_of_what_another_left_is_saved_messages_go_ahead_again_however_many_come_meanwhile() -> None:
    held = holding(left_behind="9-10")
    held.saved_up_to("9-9")
    assert not held.may_push_now(1, 2, HERE)
    held.saved_up_to("10-0")
    assert held.may_push_now(1, 2, HERE)


def test_a_message_waits_for_an_earlier_one_that_was_pushed_to_another_connection() -> None:
    held = holding()
    held.went_on(1, 2, 10, HERE)
    assert held.may_push_now(1, 2, HERE)
    assert not held.may_push_now(1, 2, THERE)
    held.settled(1, 2, 10)
    assert held.may_push_now(1, 2, THERE)


def test_a_message_waits_while_any_earlier_one_was_pushed_to_nobody() -> None:
    held = holding()
    held.went_on(1, 2, 10, HERE)
    held.went_on(1, 2, 11, "")
    held.settled(1, 2, 10)
    assert not held.may_push_now(1, 2, HERE)
    held.settled(1, 2, 11)
    assert held.may_push_now(1, 2, HERE)


def test_other_senders_and_receivers_do_not_wait() -> None:
    held = holding()
    held.went_on(1, 2, 10, "")
    assert held.may_push_now(1, 3, HERE)
    assert held.may_push_now(4, 2, HERE)


def test_what_is_settled_twice_counts_once() -> None:
    held = holding()
    held.went_on(1, 2, 10, "")
    held.went_on(1, 2, 11, "")
    held.settled(1, 2, 10)
    held.settled(1, 2, 10)
    assert not held.may_push_now(1, 2, HERE)


def test_what_redis_has_lost_holds_up_nobody_for_ever() -> None:
    held = holding()
    held.went_on(1, 2, 10, "")
    held.nothing_to_save()
    assert held.may_push_now(1, 2, HERE)


@pytest.mark.parametrize("under_way", ["handing_on", "more_to_save"])
def test_what_is_just_being_handed_on_is_not_forgotten(under_way: str) -> None:
    held = holding()
    held.went_on(1, 2, 10, "")
    if under_way == "handing_on":
        held.handing_on = True
    else:
        held.more_to_save.set()
    held.nothing_to_save()
    assert not held.may_push_now(1, 2, HERE)


def test_a_lease_that_may_have_lapsed_is_lost() -> None:
    held = holding()
    held.check()
    held.valid_until = monotonic() - 1
    with pytest.raises(LostShard):
        held.check()
