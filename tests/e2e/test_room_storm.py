"""A thousand members that join one room at the same time, over two instances."""

import asyncio

import pytest

from support.rooms import gathering, translation, translator
from support.speech import Harness, Talker, module_harness, new_scenario
from support.waiting import wait_until

MEMBERS, AT_ONCE = 1000, 50
STORM_S = 60.0

harness = module_harness({}, {})


async def answered(talker: Talker, type: str) -> dict[str, object]:
    return await talker.until(lambda message: message["type"] == type, STORM_S)


@pytest.mark.long
async def test_thousand_members_join_at_once_beside_another_room_and_each_gets_the_next_caption_once(
    harness: Harness,
) -> None:
    async with new_scenario(harness) as scenario, gathering(scenario) as met, gathering(scenario) as apart:
        await translator(scenario, ["en", "es"])
        ann = await met.join("en", 0)
        writer, reader = await apart.join("en", 0), await apart.join("es", 1)
        talkers = list[Talker]()
        for at in range(0, MEMBERS, AT_ONCE):
            some = (scenario.talker(number % 2, src_lang="en", tgt_lang="es") for number in range(at, at + AT_ONCE))
            talkers += await asyncio.gather(*some)

        async def join(talker: Talker) -> None:
            await talker.say("room_join", room_id=met.id, display_name="x", speaks="es", hears="es")
            await answered(talker, "room_joined")

        joining, number = asyncio.gather(*map(join, talkers)), 0
        while not joining.done():
            number += 1
            await writer.room.write(f"beside {number}")
            await reader.shows(translation("es", f"beside {number}"))
        await joining
        await wait_until(lambda: ann.room.count == MEMBERS + 1, STORM_S)
        await ann.room.write("welcome")
        for talker in talkers:
            await answered(talker, "caption_translation")
        others = [[said["type"] for said in one.heard if said["type"].startswith("caption")] for one in talkers]
        assert others == [["caption"]] * MEMBERS  # beside the translation that was awaited
