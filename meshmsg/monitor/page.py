"""The live page: the files that it is made of, which say nothing about any peer.

A browser gets them without a token, and then asks its user for one: what is secret comes by
`/events`.  The policy lets no script or style run that is not one of these files.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.resources import files

from meshmsg.monitor.http_messages import Answer

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@functools.cache
def page_answers() -> Mapping[str, Answer]:
    """Each file by its path; the page itself by `/`."""
    found = {}
    for file in files("meshmsg.monitor").joinpath("page_files").iterdir():
        kind = KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            path = "/" if file.name == "index.html" else f"/{file.name}"
            found[path] = Answer(200, file.read_bytes(), kind, HEADERS)
    return found
