"""The process between the instances and Redis: one link an instance, which can be cut, held and mended.

    {"act": "open", "links": {"v1": ["redis://127.0.0.1:11001", …]}}    {"done": {"v1": ["redis://127.0.0.1:12001", …]}}
    {"act": "cut", "link": "v1"}                                        connections break, nobody gets through
    {"act": "hold", "link": "v1"}                                       nothing gets through, and nobody is told
    {"act": "mend", "link": "v1"}

A process of its own, so that a busy harness does not slow down what it measures. Told by lines, as the load makers of
the benches are.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from dragoman.tools.bench.load_process import play
from dragoman.tools.verify.tcp_proxy import TcpProxy

MODULE = "dragoman.tools.verify.link_proxy"


class Links:
    def __init__(self) -> None:
        self._links: dict[str, list[TcpProxy]] = {}

    async def open(self, links: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """One proxy for each server of each link; a link's own proxies name only each other."""
        for link, urls in links.items():
            ports: dict[int, int] = {}
            self._links[link] = [TcpProxy(url, ports if len(urls) > 1 else None) for url in urls]
            for url, proxy in zip(urls, self._links[link], strict=True):
                await proxy.start()
                ports[urlsplit(url).port or 0] = proxy.port
        return {link: [proxy.url for proxy in proxies] for link, proxies in self._links.items()}

    async def cut(self, link: str) -> None:
        for proxy in self._links[link]:
            proxy.cut()

    async def hold(self, link: str) -> None:
        for proxy in self._links[link]:
            proxy.hold()

    async def mend(self, link: str) -> None:
        for proxy in self._links[link]:
            proxy.mend()


if __name__ == "__main__":
    _links = Links()
    play({"open": _links.open, "cut": _links.cut, "hold": _links.hold, "mend": _links.mend})
