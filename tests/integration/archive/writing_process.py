"""A process that saves messages as fast as it can: `writing_process.py <url> <name> <messages> <shared>`.

It sends as ten users of its own to four receivers that every such process writes to. The last `shared` of its messages
have senders and clientMsgIds that all processes use. It prints the verdicts it got, as JSON, by clientMsgId.
"""

import asyncio
import json
import sys

from dragoman.archive import NewMessage, open_archive


def letters(name: int, messages: int, shared: int) -> list[NewMessage]:
    own = [
        NewMessage((name << 32) + n, f"{name}-{n}", name * 100 + n % 10, n % 4 + 1, "TEXT", f"{n}", 1)
        for n in range(messages)
    ]
    common = [
        NewMessage((name << 32) + messages + n, f"common-{n}", 50 + n % 3, n % 4 + 1, "TEXT", "same", 1)
        for n in range(shared)
    ]
    return own + common


async def main(url: str, name: int, messages: int, shared: int) -> None:
    archive = open_archive(url)
    waiting = letters(name, messages, shared)
    told = {}
    try:
        while waiting:
            # Three calls at once, as three shards of one instance would make them; each user's messages stay in order.
            turn, waiting = waiting[:60], waiting[60:]
            lots = [[row for row in turn if row.from_user % 3 == part] for part in range(3)]
            for outcomes in await asyncio.gather(*(archive.save(lot) for lot in lots)):
                told.update({outcome.message.client_msg_id: outcome.verdict.value for outcome in outcomes})
    finally:
        await archive.close()
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
