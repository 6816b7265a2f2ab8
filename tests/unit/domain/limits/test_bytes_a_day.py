from dragoman.domain.limits.bytes_a_day import DAY_S, ROW_BYTES, BytesADay, cost


def test_a_sender_has_room_until_its_bytes_of_the_day_are_used() -> None:
    day = BytesADay(1000)
    day.stored(600, 0.0)
    assert day.room_for(400, 1.0)
    assert not day.room_for(401, 1.0)


def test_a_day_begins_with_the_first_byte_and_then_all_of_it_is_back() -> None:
    day = BytesADay(1000)
    day.stored(1000, 5.0)
    assert not day.room_for(1, 5.0 + DAY_S - 1)
    assert day.room_for(1000, 5.0 + DAY_S)
    day.stored(1000, 5.0 + DAY_S)
    assert not day.room_for(1, 6.0 + DAY_S)


def test_what_the_cluster_counted_replaces_what_one_connection_knows() -> None:
    day = BytesADay(1000)
    day.stored(1, 0.0)
    day.learned(1000, 60.0, 10.0)
    assert not day.room_for(1, 69.0)
    assert day.room_for(1, 70.0)


def test_a_quota_of_zero_is_any_number() -> None:
    day = BytesADay(0)
    day.stored(10**12, 0.0)
    assert day.room_for(10**12, 1.0)


def test_a_message_costs_its_bytes_and_those_of_its_row() -> None:
    assert cost("né") == 3 + ROW_BYTES
