"""The local server of `polyadic label`: the page, its data, and the answers; only for who knows the token."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from polyadic.errors import PolyadicError
from polyadic.label.session import ConflictError, Session
from polyadic.label.views import Views

_FILES = {"": "html", "page.js": "javascript", "page.css": "css"}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_NUMBERS = {"row", "first", "last", "stamp", "suggest"}
"""Parameters of requests that are whole numbers; the others are texts."""


async def _answer(method: Callable[..., Any], request: Request) -> Response:
    """Call a method with the parameters of a request, in a thread; what it returns for an answer is on the disk."""
    try:
        given = dict(request.query_params) if request.method == "GET" else json.loads(await request.body())
        values = {name: (int if name in _NUMBERS else str)(value) for name, value in given.items()}
        return JSONResponse(await run_in_threadpool(method, **values))
    except ConflictError as error:
        return JSONResponse({"error": str(error)}, 409)
    except (PolyadicError, AttributeError, IndexError, TypeError, ValueError) as error:
        return JSONResponse({"error": str(error)}, 400)
    except OSError as error:
        return JSONResponse({"error": f"NOT SAVED: {error}"}, 507)


def build_app(session: Session, token: str, hosts: tuple[str, ...] = ()) -> ASGIApp:
    """Return the application: everything is below /token/, and anything else is not found.

    Only requests of the page itself pass. The Host must be an address of this machine, so that no name of another site
    can point here (DNS rebinding); the Origin, if there is one, must be the page, and answers need one.

    Parameters
    ----------
    session : answers, questions and predictions
    token : random text in the address
    hosts : further names of this machine that may stand in the address
    """
    allowed = ("localhost", socket.gethostname().lower(), *hosts)

    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
        own_page = origin == f"http://{host}" or (origin is None and request.method == "GET")
        own_page &= request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        if own_page and (name.lower() in allowed or _is_address(name)):
            response = await call_next(request)
        else:
            response = JSONResponse({"error": "The request comes from another page, or for another host."}, 403)
        response.headers.update(_HEADERS)
        return response

    def file(name: str) -> Callable[[Request], Response]:
        content = (resources.files("polyadic.label") / (name or "page.html")).read_bytes()
        return lambda _: Response(content, media_type=f"text/{_FILES[name]}")

    views, routes = Views(session), [Route(f"/{name}", file(name)) for name in _FILES]
    reads, writes = ("start", "question", "window", "state"), ("answer", "undo", "pick", "rename")
    for source, names, method in ((views, reads, "GET"), (session, writes, "POST")):
        routes += [Route(f"/api/{name}", partial(_answer, getattr(source, name)), methods=[method]) for name in names]
    return Starlette(routes=[Mount(f"/{token}", routes=routes)], middleware=[Middleware(BaseHTTPMiddleware, guard)])


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
