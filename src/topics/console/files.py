"""The files of the web console, as a browser gets them: path, content type, bytes, ETag, and their security headers.

The console is plain ES modules and CSS in the folder `page`, one subject per file, without a build step. The files
contain no data of the server: every figure on the page comes from `/v0`, with the key that the user types.

Rules of the page, which the headers make the browser enforce:
1. Scripts and styles come from these files only: no inline script, no inline style, no other host.
2. No text becomes HTML. `require-trusted-types-for` makes an assignment to `innerHTML` an error.
3. The page is never shown inside of another page, and sends no referrer.
"""

import hashlib
import os
from typing import Final, NamedTuple

# Where the files are on the server. `index.html` is at `/`.
FOLDER: Final = "/console/"
INDEX: Final = "index.html"

_TYPES: Final = {
    "html": b"text/html; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "svg": b"image/svg+xml",
}

_POLICY: Final = (
    b"default-src 'none'",
    b"script-src 'self'",
    b"style-src 'self'",
    b"connect-src 'self'",
    b"img-src 'self' data:",
    b"base-uri 'none'",
    b"form-action 'none'",
    b"frame-ancestors 'none'",
    b"require-trusted-types-for 'script'",
    b"trusted-types 'none'",
)

SECURITY_HEADERS: Final = (
    (b"content-security-policy", b"; ".join(_POLICY)),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class ConsoleFile(NamedTuple):
    path: str
    content_type: bytes
    body: bytes
    # Weak, because the same file may be sent with and without compression.
    etag: bytes


def load_files() -> list[ConsoleFile]:
    """All files of the console, paths ascending.

    It takes a millisecond or two of a start. `importlib.resources` would take tens, most of them for its own imports.
    """
    root = os.path.join(os.path.dirname(__file__), "page")
    names = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    return sorted(_load(root, path) for path in names if path.rpartition(".")[2] in _TYPES)


def _load(root: str, path: str) -> ConsoleFile:
    with open(path, "rb") as file:
        body = file.read()
    name = os.path.relpath(path, root).replace(os.sep, "/")
    etag = b'W/"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
    return ConsoleFile("/" if name == INDEX else FOLDER + name, _TYPES[name.rpartition(".")[2]], body, etag)
