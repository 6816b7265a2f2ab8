"""An instance that never comes to its end: what it does after its drain waits for ever."""

import asyncio

from dragoman.instance.__main__ import main
from dragoman.instance.instance import Instance


async def stop(self: Instance) -> None:
    await asyncio.Event().wait()


Instance.stop = stop  # type: ignore[method-assign]

main()
