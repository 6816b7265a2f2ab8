"""Limits by address, as the settings say them."""

from typing import Any, cast

import pytest

from dragoman.protocol.codes import Close
from support.in_process import OpenInstance, RecordingSocket


@pytest.mark.parametrize(("per_address", "codes"), [(2000, [None, None, Close.OVERLOADED]), (0, [None, None, None])])
async def test_silent_connections_behind_a_balancer_do_not_block_other_clients_of_its_address(
    open_instance: OpenInstance, per_address: int, codes: list[int | None]
) -> None:
    instance = await open_instance(limits__pre_session_connections=8, limits__connections_per_address=per_address)
    room = instance.instance.ports._pre_session(1000)
    visitors = [RecordingSocket() for _ in range(3)]  # two are the share of one address
    for visitor in visitors:
        visitor.peer = ("203.0.113.7", 1)
        room.add(cast(Any, visitor), Close.IDLE, "why")
    assert [visitor.code for visitor in visitors] == codes
