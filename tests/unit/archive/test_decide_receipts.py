from dragoman.archive import Receipt, Status, Stored
from dragoman.archive.decide_receipts import ReceiptDecision, reach

SAVED, DELIVERED, READ = Status.SAVED, Status.DELIVERED, Status.READ


def message(number: int, status: Status = SAVED, *, to: int = 2, conversation: int = 7) -> Stored:
    return Stored(number, conversation, number, 1, to, "TEXT", "hello", f"c{number}", status, 5, 6)


def raised(decision: ReceiptDecision) -> dict[int, Status]:
    return {changed.id: changed.status for changed in decision.raised}


def test_delivered_raises_what_it_names() -> None:
    decision = ReceiptDecision([message(1), message(2), message(3, READ)])
    applied = decision.apply(Receipt(2, DELIVERED, (2, 3)))
    assert [changed.id for changed in applied.changed] == [2]
    assert raised(decision) == {2: DELIVERED}


def test_read_takes_along_what_was_delivered_before_it_and_nothing_else() -> None:
    rows = [message(1, DELIVERED), message(2), message(3, DELIVERED), message(4, DELIVERED)]
    decision = ReceiptDecision([*rows, message(5, DELIVERED, conversation=8)])
    applied = decision.apply(Receipt(2, READ, (3,)))
    assert [changed.id for changed in applied.changed] == [1, 3]
    assert raised(decision) == {1: READ, 3: READ}


def test_read_again_takes_along_what_was_delivered_meanwhile() -> None:
    decision = ReceiptDecision([message(1), message(2)])
    decision.apply(Receipt(2, READ, (2,)))
    decision.apply(Receipt(2, DELIVERED, (1,)))
    applied = decision.apply(Receipt(2, READ, (2,)))
    assert [(changed.id, changed.status) for changed in applied.changed] == [(1, READ)]


def test_a_message_to_somebody_else_and_one_that_is_not_there_are_told_apart() -> None:
    applied = ReceiptDecision([message(1, to=3)]).apply(Receipt(2, READ, (1, 9)))
    assert (applied.not_allowed, applied.missing, applied.changed) == ([1], [9], [])


def test_receipts_reach_as_far_as_the_last_message_read() -> None:
    named = {number: message(number) for number in (1, 2, 3)} | {4: message(4, to=3)}
    reached = reach([Receipt(2, DELIVERED, (3, 4, 9)), Receipt(2, READ, (2, 1))], named)
    assert reached.read_upto == {(7, 2): 2}
    assert list(reached.ids) == [3, 2, 1]


def test_receipts_that_only_deliver_reach_into_a_lane_without_reading_it() -> None:
    assert reach([Receipt(2, DELIVERED, (1,))], {1: message(1)}).read_upto == {(7, 2): 0}
