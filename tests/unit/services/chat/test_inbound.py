"""What a receiver is sent during a resend: older before newer, whenever and by whatever it is requested."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

from dragoman.archive import Status, Stored
from dragoman.services.chat import inbound
from dragoman.services.chat.inbound import ChatSocket, Inbound, frame_of

SENDER, RECEIVER = 7, 9


class Socket:
    closed = False
    buffered = 0

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self.send = send


class Rows:
    """An archive that answers when it is let."""

    def __init__(self) -> None:
        self.rows: list[Stored] = []
        self.looks = 0
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    def save(self, id: int) -> Stored:
        row = Stored(id, 1, id, SENDER, RECEIVER, "TEXT", "hi", f"c{id}", Status.SAVED, 5, 6)
        self.rows.append(row)
        return row

    async def undelivered(self, user: int, after: int, most: int) -> list[Stored]:
        self.looks += 1
        found = [row for row in self.rows if row.id > after][:most]
        self.asked.set()
        await self.go_on.wait()
        return found


class House:
    def __init__(self) -> None:
        self.rows, self.heard = Rows(), list[int]()
        self.inbound = Inbound(RECEIVER, cast(ChatSocket, Socket(self._hear)), self.rows)

    def _hear(self, frame: bytes) -> None:
        said: dict[str, Any] = json.loads(frame)
        self.heard.append(int(said["serverMsgId"]))

    def save_and_push(self, id: int) -> None:
        row = self.rows.save(id)
        self.inbound.push(row.id, row.from_user, frame_of(row))


def test_pushes_during_a_pause_wait_although_an_earlier_resend_ends() -> None:
    async def main() -> None:
        house = House()
        house.rows.go_on.clear()
        first = asyncio.ensure_future(house.inbound.resume())
        await house.rows.asked.wait()
        house.inbound.pause()
        house.rows.go_on.set()
        await first
        house.rows.save(1)  # and nobody knows where to push it
        house.save_and_push(2)
        assert house.heard == []
        await house.inbound.resume()
        assert house.heard == [1, 2]
        assert not house.inbound._state.resending

    asyncio.run(main())


def test_pushes_wait_until_each_pause_has_ended() -> None:
    async def main() -> None:
        house = House()
        house.inbound.pause()
        house.save_and_push(2)
        house.rows.rows.clear()  # delivered before it was saved
        await house.inbound.resume()
        assert house.heard == []
        house.rows.save(1)
        await house.inbound.resume()
        assert house.heard == [1, 2]

    asyncio.run(main())


def test_resend_that_is_requested_during_another_sends_what_was_missed_after_it() -> None:
    async def main() -> None:
        house = House()
        for id in range(1, inbound.PAGE + 1):
            house.rows.save(id)
        await house.inbound.resume()
        house.heard.clear()
        house.rows.asked.clear()
        house.rows.go_on.clear()
        again = asyncio.ensure_future(house.inbound.resend(again=True, pages=1))
        await house.rows.asked.wait()
        missed, pushed = inbound.PAGE + 1, inbound.PAGE + 2
        house.rows.save(missed)
        house.inbound.pause()
        house.save_and_push(pushed)
        looking = asyncio.ensure_future(house.inbound.resume())
        house.rows.go_on.set()
        await asyncio.gather(again, looking)
        assert house.heard == [*range(1, inbound.PAGE + 1), missed, pushed]

    asyncio.run(main())
