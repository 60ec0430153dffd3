"""The local server of `polyadic label`: the page, its data, and the answers; only for who knows the token."""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
from collections.abc import Callable
from functools import partial
from importlib import resources
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from polyadic.errors import PolyadicError
from polyadic.label.session import ConflictError, Session
from polyadic.label.views import Views, encode_array

__all__ = ["Guard", "build_app", "new_token"]

_FILES = {
    "": ("page.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
}
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_MOST_BYTES = 10_000
"""Maximum size of a request; answers are short."""
_MOST_COLUMNS = 2000
"""Maximum number of windows of a timeline."""


def new_token() -> str:
    """Return a random token for the address."""
    return secrets.token_urlsafe(24)


class Guard:
    """Let only requests of the page itself pass, and add the headers that keep others out.

    The Host must be an address of this machine, so that no name of another site can point here (DNS rebinding); the
    Origin, if there is one, must be the page, and answers need one.

    Parameters
    ----------
    app : the application behind
    hosts : names under which the server may be addressed, besides IP addresses
    """

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...] = ("localhost",)) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        problem = self._problem(Request(scope))
        answer: Any = self.app if problem is None else JSONResponse({"error": problem}, 403)

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            await send(message)

        await answer(scope, receive, send_guarded)

    def _problem(self, request: Request) -> str | None:
        host = request.headers.get("host", "")
        name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
        if name.lower() not in self.hosts and not _is_address(name):
            return "The host is not this machine."
        origin = request.headers.get("origin")
        if (origin is None and request.method != "GET") or origin not in (None, f"http://{host}"):
            return "The request comes from another page."
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "The request comes from another site."
        if request.method != "GET" and request.headers.get("content-type", "") != "application/json":
            return "The request is not JSON."
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class _Api:
    """The answers to requests of the page."""

    def __init__(self, session: Session, views: Views) -> None:
        self.session, self.views = session, views

    def start(self, _: dict[str, Any]) -> dict[str, Any]:
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
            "subject": str(session.windows.index.subjects[index.recording[row]]),
            "start": float(index.start[row]) / (session.windows.fs or 1.0),
            "point": self.views.map[row].tolist(),
            "suggestion": suggestion,
        }

    def window(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return signals with context, and the spectrogram of the window."""
        row, first, last, channel = (int(given[name]) for name in ("row", "first", "last", "channel"))
        length = self.session.windows.shape[2]
        if not (0 <= row < len(self.session.windows) and -40 * length <= first < last <= 41 * length):
            raise PolyadicError("There is no such part of a recording.")
        if not channel < self.session.windows.shape[1]:
            raise PolyadicError(f"There is no channel {channel}.")
        return self.views.signals(row, first, last, None if channel < 0 else channel)

    def state(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return what follows from the labels: counts, predictions on map and timeline, accuracy."""
        session, row = self.session, int(given["row"])
        predictions, sample = session.predictions, session.questions.sample
        names = [str(name) for name in predictions.classes.tolist()]
        codes = {name: code for code, name in enumerate(names)}
        rows, along = session.timeline(row)
        step = max(1, -(-len(rows) // _MOST_COLUMNS))
        rows, along = rows[::step], along[::step]
        labelled = [place for place, label in enumerate(session.labels) if label and place != row]
        found = predictions.probabilities
        predicted = np.full(len(sample), -1) if found is None else found[sample].argmax(axis=1)
        fs = session.windows.fs or 1.0
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
                "starts": encode_array(session.windows.start[rows] / fs),
                "codes": encode_array([codes.get(str(name), -1) for name in along], "<i2"),
                "step": step,
                "along": predictions.classifier is not None,
            },
        }

    def label(self, given: dict[str, Any]) -> dict[str, Any]:
        """Save an answer; "" skips. What is returned is on the disk."""
        self.session.answer(str(given["tab"]), int(given["row"]), str(given["label"]), int(given["stamp"]))
        return {"saved": given["row"], "stamp": self.session.stamp(int(given["row"]))}

    def undo(self, given: dict[str, Any]) -> dict[str, Any]:
        """Take an answer back."""
        self.session.undo(str(given["tab"]), int(given["row"]), int(given["stamp"]))
        return {"undone": given["row"]}

    def pick(self, given: dict[str, Any]) -> dict[str, Any]:
        """Let the tab answer about a window of its choice."""
        if not 0 <= int(given["row"]) < len(self.session.windows):
            raise PolyadicError("There is no such window.")
        self.session.pick(str(given["tab"]), int(given["row"]))
        return {"picked": given["row"]}

    def rename(self, given: dict[str, Any]) -> dict[str, Any]:
        """Rename a class, or merge it into another."""
        self.session.rename(str(given["old"]), str(given["new"]))
        return {"renamed": given["new"]}


async def _answer(handler: Callable[[dict[str, Any]], dict[str, Any]], request: Request) -> Response:
    try:
        if request.method == "POST":
            body = b""
            async for part in request.stream():
                body += part
                if len(body) > _MOST_BYTES:
                    return JSONResponse({"error": "The request is too long."}, 413)
            given = json.loads(body)
        else:
            given = dict(request.query_params)
        return JSONResponse(await run_in_threadpool(handler, given))
    except ConflictError as error:
        return JSONResponse({"error": str(error)}, 409)
    except (PolyadicError, KeyError, TypeError, ValueError) as error:
        return JSONResponse({"error": str(error)}, 400)
    except OSError as error:
        return JSONResponse({"error": f"NOT SAVED: {error}"}, 507)


def build_app(session: Session, token: str, hosts: tuple[str, ...] = ()) -> ASGIApp:
    """Return the application: everything is below /token/, and anything else is not found.

    Parameters
    ----------
    session : answers, questions and predictions
    token : random text in the address
    hosts : further names of this machine that may stand in the address
    """
    api = _Api(session, Views(session.windows, session.Z))
    folder = resources.files("polyadic.label")

    def file(name: str) -> Callable[[Request], Response]:
        path, kind = _FILES[name]
        content = (folder / path).read_bytes()
        return lambda _: Response(content, media_type=kind)

    reads, writes = ("start", "question", "window", "state"), ("label", "undo", "pick", "rename")
    routes = [Route(f"/{name}", file(name)) for name in _FILES]
    for names, method in ((reads, "GET"), (writes, "POST")):
        routes += [Route(f"/api/{name}", partial(_answer, getattr(api, name)), methods=[method]) for name in names]
    inner = Starlette(routes=[Mount(f"/{token}", routes=routes)])
    return Guard(inner, ("localhost", socket.gethostname().lower(), *hosts))
