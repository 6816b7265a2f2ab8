from random import Random

from dragoman.client.backoff import Backoff
from dragoman.client.chat.outbox import Outbox
from dragoman.client.chat.sent import Sent


class Steady(Random):
    """Every pause is as long as it may be."""

    def uniform(self, a: float, b: float) -> float:
        return b


def outbox(in_flight: int = 1, again_s: float = 20.0) -> Outbox:
    return Outbox(Backoff(1.0, 4.0, 5.0, Steady()), in_flight, again_s)


def add(box: Outbox, *numbers: int) -> list[Sent]:
    sents = [Sent(number, f"c{number}", 2, "hi", "TEXT") for number in numbers]
    for sent in sents:
        box.add(sent)
    return sents


def said(box: Outbox, now: float = 0.0) -> list[int]:
    numbers = []
    while (sent := box.next(now)) is not None:
        numbers.append(sent.number)
    return numbers


def test_one_is_said_at_a_time() -> None:
    box = outbox()
    add(box, 1, 2)
    assert said(box) == [1]
    box.accepted("c1")
    assert said(box) == [2]
    assert len(box) == 2


def test_what_is_done_is_gone() -> None:
    box = outbox()
    (sent,) = add(box, 1)
    said(box)
    assert box.done("c1") is sent
    assert box.done("c1") is None
    assert (len(box), box.due_at()) == (0, None)


def test_a_refused_one_is_said_again_after_pauses_that_grow() -> None:
    box = outbox()
    add(box, 1, 2)
    now, pauses = 0.0, []
    for _ in range(4):
        assert said(box, now) == [1]
        assert box.busy("c1", now)
        assert said(box, now) == []
        due_at = box.due_at()
        assert due_at is not None
        pauses.append(due_at - now)
        now = due_at
    assert pauses == [1, 2, 4, 4]


def test_an_answer_makes_pauses_short_again() -> None:
    box = outbox()
    add(box, 1, 2)
    said(box)
    box.busy("c1", 0.0)
    said(box, 10.0)
    box.accepted("c1")
    said(box, 10.0)
    box.busy("c2", 10.0)
    assert said(box, 11.0) == [2]


def test_with_several_in_flight_a_refused_one_goes_first_again() -> None:
    box = outbox(in_flight=3)
    add(box, 1, 2, 3, 4)
    assert said(box) == [1, 2, 3]
    box.busy("c1", 0.0)
    box.accepted("c2")
    assert said(box, 1.0) == [1, 4]


def test_a_lost_connection_brings_everything_back_in_order() -> None:
    box = outbox()
    add(box, 1, 2, 3)
    said(box)
    box.accepted("c1")
    said(box)
    box.lost()
    assert said(box) == [1]
    box.accepted("c1")
    assert said(box) == [2]


def test_without_a_word_for_too_long_it_is_said_again() -> None:
    box = outbox(again_s=20)
    add(box, 1)
    said(box, 0.0)
    box.accepted("c1")
    assert box.due_at() == 20
    assert said(box, 19.9) == []
    assert said(box, 20.0) == [1]
    assert box.due_at() == 40


def test_what_was_saved_meanwhile_is_not_said_again() -> None:
    box = outbox()
    add(box, 1, 2)
    box.lost()
    box.done("c1")
    assert said(box) == [2]


def test_an_answer_to_something_else_is_none_of_ours() -> None:
    box = outbox()
    assert box.accepted("x") is None
    assert not box.busy("x", 0.0)
