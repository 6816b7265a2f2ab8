"""The copy a connection keeps of what its sender has on its way: it may say too many, never too few."""

from hypothesis import given
from hypothesis import strategies as st

from dragoman.domain.chat.sent_messages import RECENT_S, Unsaved

NOW = 100.0


def known(before: int = 0) -> Unsaved:
    unsaved = Unsaved()
    unsaved.counted(before, 0, NOW)
    return unsaved


def test_it_is_not_known_until_redis_was_asked() -> None:
    unsaved = Unsaved()
    assert unsaved.count is None
    unsaved.accepted(1)
    unsaved.ended(1, NOW)
    assert unsaved.count is None
    unsaved.counted(2, newest=1, now=NOW)
    assert unsaved.count == 2


def test_a_message_counts_from_accepted_to_its_end() -> None:
    unsaved = known()
    unsaved.accepted(5)
    unsaved.accepted(8)
    assert unsaved.count == 2
    unsaved.ended(5, NOW)
    assert unsaved.count == 1
    unsaved.ended(8, NOW)
    assert unsaved.count == 0


def test_a_message_ends_once_however_often_it_is_said() -> None:
    unsaved = known()
    unsaved.accepted(5)
    unsaved.accepted(8)
    for _ in range(3):
        unsaved.ended(5, NOW)
    assert unsaved.count == 1


def test_one_of_an_earlier_connection_ends_once_as_well() -> None:
    unsaved = known(before=2)
    unsaved.ended(5, NOW)
    unsaved.ended(5, NOW)
    assert unsaved.count == 1


def test_saved_message_confirms_all_before_it() -> None:
    """Also of those of an earlier connection: their ids are lower."""
    unsaved = known(before=3)
    for id in (5, 8, 9):
        unsaved.accepted(id)
    unsaved.ended(8, NOW)
    assert unsaved.count == 1


def test_confirmation_after_the_query_is_not_counted_twice() -> None:
    unsaved = known()
    for id in (5, 8):
        unsaved.accepted(id)
    unsaved.counted(1, newest=8, now=NOW)
    unsaved.ended(5, NOW)
    assert unsaved.count == 1
    unsaved.ended(8, NOW)
    assert unsaved.count == 0


def test_unsaved_count_is_unknown_until_redis_is_asked_again() -> None:
    unsaved = known()
    unsaved.accepted(5)
    unsaved.lost_count()
    unsaved.ended(5, NOW)
    assert unsaved.count is None
    unsaved.counted(0, newest=5, now=NOW)
    assert unsaved.count == 0


def test_messages_accepted_during_the_query_are_counted() -> None:
    unsaved = known()
    unsaved.accepted(5)
    unsaved.accepted(8)
    unsaved.counted(0, newest=5, now=NOW)
    assert unsaved.count == 1
    unsaved.ended(8, NOW)
    assert unsaved.count == 0


STEPS = st.sampled_from(["accept", "end", "say", "ask", "hear"])


@given(st.lists(st.tuples(STEPS, st.integers(0, 5)), max_size=40))
def test_it_never_says_too_few(steps: list[tuple[str, int]]) -> None:
    """Words come late, twice, or not at all, and so does a count; messages end in their order."""
    unsaved, under_way, over, asked = known(), list[int](), list[int](), (0, 0)
    for what, number in steps:
        if what == "accept":
            id = len(under_way) + len(over) + 1
            under_way.append(id)
            unsaved.accepted(id)
        elif what == "end" and under_way:
            over.append(under_way.pop(0))
        elif what == "say" and over:
            unsaved.ended(over[number % len(over)], NOW)
        elif what == "ask":
            asked = len(under_way), unsaved.newest
        elif what == "hear":
            unsaved.counted(*asked, NOW)
        assert unsaved.count is not None
        assert unsaved.count >= len(under_way)


# -- pushes before the save ------------------------------------------------------------------------

HERE, THERE = "i0|1", "i1|7"


def test_message_may_be_pushed_early_when_nothing_of_its_sender_is_unsaved() -> None:
    assert known().may_push(2, HERE)
    assert not known().may_push(2, ""), "its receiver is not connected"
    assert not known(1).may_push(2, HERE), "one of an earlier connection is on its way"
    assert not Unsaved().may_push(2, HERE), "it is not known whether one is"


def test_nothing_is_pushed_early_until_what_an_earlier_connection_sent_is_saved() -> None:
    unsaved = known(2)
    unsaved.ended(5, NOW)
    assert not unsaved.may_push(2, HERE)
    unsaved.ended(6, NOW)
    assert unsaved.may_push(2, HERE)


def test_message_waits_for_an_earlier_one_that_was_pushed_to_another_connection() -> None:
    unsaved = known()
    unsaved.accepted(10, 2, HERE)
    assert unsaved.may_push(2, HERE)
    assert not unsaved.may_push(2, THERE)
    unsaved.ended(10, NOW)
    assert unsaved.may_push(2, THERE)


def test_message_waits_while_any_earlier_one_was_pushed_to_no_connection() -> None:
    unsaved = known()
    unsaved.accepted(10, 2, HERE)
    unsaved.accepted(11, 2, HERE)
    unsaved.not_pushed(2)
    unsaved.accepted(12, 2, "")
    unsaved.ended(11, NOW)
    assert not unsaved.may_push(2, HERE)
    unsaved.ended(12, NOW)
    assert unsaved.may_push(2, HERE)


def test_other_receivers_do_not_wait() -> None:
    unsaved = known()
    unsaved.accepted(10, 2, "")
    assert unsaved.may_push(3, HERE)


def test_count_of_redis_does_not_say_that_a_message_was_pushed() -> None:
    """The push may be in an inbox when Redis counts the message as saved; the notice comes behind it."""
    unsaved = known()
    unsaved.accepted(10, 2, "")
    unsaved.counted(0, 10, NOW)
    assert not unsaved.may_push(2, HERE)
    unsaved.ended(10, NOW)
    assert unsaved.may_push(2, HERE)


def test_next_message_names_the_last_one_to_its_receiver_until_that_is_long_over() -> None:
    unsaved = known()
    assert unsaved.last_to(2, NOW) == 0
    unsaved.accepted(10, 2, HERE)
    assert (unsaved.last_to(2, NOW), unsaved.last_to(3, NOW)) == (10, 0)
    unsaved.ended(10, NOW)
    assert (unsaved.last_to(2, NOW + 1), unsaved.last_to(2, NOW + RECENT_S)) == (10, 0)
    unsaved.sent(11, 3, NOW + 2 * RECENT_S)
    assert unsaved._recent.keys() == {3}, "the others are forgotten"


def test_message_goes_in_line_for_a_while_after_everything_of_earlier_connections_has_ended() -> None:
    assert Unsaved().in_line(NOW), "it is not known"
    assert (known().in_line(NOW), known().in_line(NOW + RECENT_S)) == (True, False)
    unsaved = known(2)
    unsaved.ended(5, NOW + RECENT_S)
    assert unsaved.in_line(NOW + 2 * RECENT_S), "one is unsaved"
    unsaved.ended(6, NOW + 2 * RECENT_S)
    assert (unsaved.in_line(NOW + 2 * RECENT_S), unsaved.in_line(NOW + 3 * RECENT_S)) == (True, False)
    unsaved.counted(1, 0, NOW + 3 * RECENT_S)
    assert not unsaved.in_line(NOW + 3 * RECENT_S), "Redis counts a message after its sender knows that it is saved"
