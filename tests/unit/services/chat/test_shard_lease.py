from time import monotonic

import pytest

from dragoman.services.chat.shard_lease import LostShard, ShardLease


def lease() -> ShardLease:
    return ShardLease(0, "i0", 3, monotonic() + 60)


@pytest.mark.parametrize("under_way", ["moving", "more_to_save"])
def test_early_pushes_are_kept_while_a_batch_is_moved(under_way: str) -> None:
    held = lease()
    held.early.moved(1, 2, 10, "")
    if under_way == "moving":
        with held.moving():
            held.nothing_to_save()
    else:
        held.more_to_save.set()
        held.nothing_to_save()
    assert not held.early.may_push(1, 2, "i0|1")
    held.more_to_save.clear()
    held.nothing_to_save()
    assert held.early.may_push(1, 2, "i0|1")


def test_expired_lease_is_lost_until_it_is_renewed() -> None:
    held = lease()
    held.check()
    held.renew(monotonic() - 1)
    with pytest.raises(LostShard):
        held.check()
    held.renew(monotonic() + 60)
    held.check()
    held.lose()
    with pytest.raises(LostShard):
        held.check()
