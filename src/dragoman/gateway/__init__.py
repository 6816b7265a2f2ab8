"""The gateway's transport: one port for WebSockets and HTTP, and nothing of what is said over it."""

from dragoman.gateway.connection import Connection, Endpoint, EndpointFactory
from dragoman.gateway.counters import Counters
from dragoman.gateway.handshake import Authorizer, OriginAllowList, Reject, Request
from dragoman.gateway.listener import Listener, Route

__all__ = [
    "Authorizer",
    "Connection",
    "Counters",
    "Endpoint",
    "EndpointFactory",
    "Listener",
    "OriginAllowList",
    "Reject",
    "Request",
    "Route",
]
