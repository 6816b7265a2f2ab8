"""Servers that speak just enough RESP to be taken for Redis, and then misbehave."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import hiredis

OK = b"+OK\r\n"


Reply = Callable[[int, list[bytes]], bytes]


@asynccontextmanager
async def pretender(reply: Reply, port: int = 0) -> AsyncIterator[str]:
    """A server that answers each command with what `reply(number of the connection, command)` says."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        mine, parser = connections, hiredis.Reader(notEnoughData=None)
        while data := await reader.read(65536):
            parser.feed(data)
            while (command := parser.gets()) is not None:
                writer.write(reply(mine, command))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
