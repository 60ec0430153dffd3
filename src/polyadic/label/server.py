"""The local server of `polyadic label`: the page, its data, and the answers; only for who knows the token."""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import resources
from typing import Any

import numpy as np
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
from polyadic.label.views import Views, encode_array

__all__ = ["build_app"]

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
_MOST_COLUMNS = 2000
"""Maximum number of windows of a timeline."""
_MOST_CONTEXT = 40
"""Maximum context before and after a window, in windows."""


class _Api:
    """The answers to requests of the page."""

    def __init__(self, session: Session) -> None:
        self.session, self.views = session, Views(session.windows, session.Z)

    def start(self, _: Any) -> dict[str, Any]:
        """Return what never changes: channels, length of windows, and the map."""
        windows, sample = self.session.windows, self.session.questions.sample
        return {
            "channels": self.views.channels(),
            "fs": windows.fs or 1.0,
            "length": windows.shape[2],
            "windows": len(windows),
            "subjects": len(np.unique(self.session.groups)),
            "file": self.session.journal.path.name,
            "rows": encode_array(sample, "<i4"),
            "map": encode_array(self.views.map[sample]),
            "typical": encode_array(self.views.typical),
        }

    def question(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the window that a tab is asked about, and, if wanted, the suggested label."""
        session = self.session
        row, asked = session.question(str(given["tab"]))
        index, predictions = session.windows.index, session.predictions
        suggestion = ""
        # Suggestions bias: never for windows of the estimate and repeated ones.
        if given.get("suggest") == "1" and asked not in ("random", "again") and predictions.probabilities is not None:
            suggestion = str(predictions.classes[predictions.probabilities[row].argmax()])
        return {
            "row": row,
            "asked": "unsure" if asked == "again" else asked,
            "label": session.labels[row] if asked == "picked" else "",
            "stamp": session.stamp(row),
            "recording": str(index.names[index.recording[row]]),
            "subject": str(index.subjects[index.recording[row]]),
            "start": float(index.start[row]) / (session.windows.fs or 1.0),
            "point": self.views.map[row].tolist(),
            "suggestion": suggestion,
        }

    def window(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return signals with context, and the spectrum of the window."""
        row, first, last = (int(given[name]) for name in ("row", "first", "last"))
        longest = _MOST_CONTEXT * self.session.windows.shape[2]
        if not (0 <= row < len(self.session.windows) and -longest <= first < last <= 2 * longest):
            raise PolyadicError("There is no such part of a recording.")
        return self.views.signals(row, first, last)

    def state(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return what follows from the labels: counts, predictions on map and timeline, accuracy."""
        session, row = self.session, int(given["row"])
        predictions, sample = session.predictions, session.questions.sample
        names = [str(name) for name in predictions.classes.tolist()]
        rows, along = session.timeline(row)
        step = max(1, -(-len(rows) // _MOST_COLUMNS))
        rows, along = rows[::step], along[::step]
        labelled = [place for place, label in enumerate(session.labels) if label and place != row]
        found = predictions.probabilities
        predicted = np.full(len(sample), -1) if found is None else found[sample].argmax(axis=1)
        return {
            **session.counts(),
            "version": session.version,
            "follows": predictions.version,
            "estimate": predictions.estimate,
            "names": names,
            "predicted": encode_array(predicted, "<i2"),
            "marks": [[place, session.labels[place]] for place in labelled],
            "points": encode_array(self.views.map[labelled]),
            "timeline": {
                "rows": encode_array(rows, "<i4"),
                "starts": encode_array(session.windows.start[rows] / (session.windows.fs or 1.0)),
                "codes": encode_array([names.index(str(name)) if name in names else -1 for name in along], "<i2"),
                "along": predictions.chain is not None,
            },
        }

    def label(self, given: dict[str, Any]) -> dict[str, Any]:
        """Save an answer; "" skips. What is returned is on the disk."""
        self.session.answer(str(given["tab"]), int(given["row"]), str(given["label"]), int(given["stamp"]))
        return {"saved": given["row"], "stamp": self.session.stamp(int(given["row"]))}

    def undo(self, given: dict[str, Any]) -> dict[str, Any]:
        """Take an answer back."""
        self.session.undo(str(given["tab"]), int(given["row"]), int(given["stamp"]))
        return {}

    def pick(self, given: dict[str, Any]) -> dict[str, Any]:
        """Let the tab answer about a window of its choice."""
        self.session.pick(str(given["tab"]), int(given["row"]))
        return {}

    def rename(self, given: dict[str, Any]) -> dict[str, Any]:
        """Rename a class, or merge it into another."""
        self.session.rename(str(given["old"]), str(given["new"]))
        return {}


async def _answer(handler: Callable[[dict[str, Any]], dict[str, Any]], request: Request) -> Response:
    try:
        given = dict(request.query_params) if request.method == "GET" else json.loads(await request.body())
        return JSONResponse(await run_in_threadpool(handler, given))
    except ConflictError as error:
        return JSONResponse({"error": str(error)}, 409)
    except (PolyadicError, KeyError, TypeError, ValueError) as error:
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

    api, reads, writes = _Api(session), ("start", "question", "window", "state"), ("label", "undo", "pick", "rename")
    routes = [Route(f"/{name}", file(name)) for name in _FILES]
    for names, method in ((reads, "GET"), (writes, "POST")):
        routes += [Route(f"/api/{name}", partial(_answer, getattr(api, name)), methods=[method]) for name in names]
    return Starlette(routes=[Mount(f"/{token}", routes=routes)], middleware=[Middleware(BaseHTTPMiddleware, guard)])


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
