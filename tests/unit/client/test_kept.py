from dragoman.client.kept import Kept


def filled(count: int, max_bytes: int = 1000) -> Kept[str]:
    kept: Kept[str] = Kept(max_bytes)
    for number in range(1, count + 1):
        kept.add(number, f"item {number}", 10)
    return kept


def test_what_was_sent_is_there_in_order_until_it_is_covered() -> None:
    kept = filled(5)
    kept.forget_to(3)
    assert kept.items() == ["item 4", "item 5"]
    assert kept.given_up == -1


def test_the_oldest_go_when_it_is_too_much_and_that_is_known() -> None:
    kept = filled(5, max_bytes=30)
    assert kept.items() == ["item 3", "item 4", "item 5"]
    assert kept.given_up == 2


def test_one_alone_can_be_forgotten_and_twice_is_no_matter() -> None:
    kept = filled(3, max_bytes=30)
    kept.forget(2)
    kept.forget(2)
    kept.add(4, "item 4", 10)
    assert kept.items() == ["item 1", "item 3", "item 4"]


def test_something_larger_than_all_there_is_room_for_is_given_up_at_once() -> None:
    kept: Kept[str] = Kept(5)
    kept.add(1, "large", 6)
    assert len(kept) == 0
    assert kept.given_up == 1
