"""Everything an operator can change has a name in the audit."""

from typing import Any, cast
from unittest.mock import Mock

from aiohttp import web

from dragoman.gateway import chat_api, console_api, revocation_api
from dragoman.gateway.auditing import ACTIONS, Auditor
from dragoman.gateway.authentication import Authenticator
from dragoman.gateway.http import HttpContext, application

READING = ("GET", "HEAD", "OPTIONS", "*")


def operators_application() -> web.Application:
    """All routes for operators, around nothing: they are only looked at."""
    nothing = cast(Any, None)
    auditor = Auditor(nothing, "here")
    stage = HttpContext("here", nothing, nothing, nothing, nothing, dict, lambda: None, auditor)
    operators = [
        *chat_api.routes(Mock(), auditor, nothing),
        *console_api.routes(Mock(), auditor),
        *revocation_api.routes(nothing, nothing, nothing, auditor),
    ]
    return application(stage, Authenticator((), "us"), (), operators)


def test_every_route_that_changes_something_is_an_action_of_the_audit_and_the_other_way_round() -> None:
    changing = {
        (route.method, route.resource.canonical)
        for route in operators_application().router.routes()
        if route.method not in READING and route.resource is not None
    }
    assert changing == set(ACTIONS)
