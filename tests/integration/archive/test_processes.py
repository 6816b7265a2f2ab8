"""Several processes on one database at once."""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from support.databases import ask

PROGRAM = Path(__file__).with_name("writing_process.py")
MESSAGES, SHARED = 900, 60


async def write(url: str, name: int) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, PROGRAM, url, str(name), str(MESSAGES), str(SHARED), stdout=asyncio.subprocess.PIPE
    )
    try:
        printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0
    told: dict[str, Any] = json.loads(printed)
    return told


async def test_processes_that_write_the_same_conversations_leave_no_gap_no_double_and_every_sender_in_order(
    sql_url: str,
) -> None:
    told = await asyncio.gather(*(write(sql_url, name) for name in (1, 2, 3)))

    rows = await ask(sql_url, "SELECT conversation_id, msg_seq, from_user_id, id FROM message ORDER BY 1, 2")
    assert len(rows) == 3 * MESSAGES + SHARED
    seqs: dict[int, list[int]] = {}
    senders: dict[tuple[int, int], list[int]] = {}
    for conversation, seq, sender, number in rows:
        seqs.setdefault(conversation, []).append(seq)
        if sender >= 100:
            senders.setdefault((conversation, sender), []).append(number)
    assert all(found == list(range(1, len(found) + 1)) for found in seqs.values())
    assert all(numbers == sorted(numbers) for numbers in senders.values())

    following = await ask(sql_url, "SELECT id, next_msg_seq FROM conversation ORDER BY 1")
    assert following == [(conversation, len(found) + 1) for conversation, found in sorted(seqs.items())]
    members = await ask(sql_url, "SELECT conversation_id, count(*) FROM member GROUP BY 1")
    assert {count for _, count in members} == {2}

    common = Counter(
        verdict for verdicts in told for client, verdict in verdicts.items() if client.startswith("common")
    )
    assert common == {"saved": SHARED, "exists": 2 * SHARED}
