import pytest
from redis.crc import key_slot

from dragoman.store.redis import slot_of


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("123456789", 0x31C3),  # the check value of CRC16/XMODEM
        ("", 0),
        ("foo", 12182),
        ("bar", 5061),
        ("hello", 866),
        ("{user1000}.following", 3443),
        ("{user1000}.followers", 3443),
        ("foo{}{bar}", 8363),
        ("foo{{bar}}zap", 4015),
        ("foo{bar}{zap}", 5061),
    ],
)
def test_slots_are_those_of_the_cluster_specification(key: str, slot: int) -> None:
    assert slot_of(key) == slot


@pytest.mark.parametrize("key", ["é", "P:jobs:{job:ümlaut}:fsm", "{日本}x", "a" * 500])
def test_slots_agree_with_redis_py(key: str) -> None:
    assert slot_of(key) == key_slot(key.encode())
