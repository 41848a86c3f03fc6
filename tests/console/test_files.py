"""The files of the web console: they fit together, need no other server, and make no HTML from text."""

import re
from pathlib import PurePosixPath

import pytest

from topics.console.files import FOLDER, ConsoleFile, load_files

FILES = {file.path: file for file in load_files()}
SCRIPTS = [path for path in FILES if path.endswith(".js")]
IMPORT = re.compile(r"""(?:\bfrom\s+|\bimport\s+|\bimport\()["']([^"']+)["']""")
STATIC_IMPORT = re.compile(r"""^import .*["']([^"']+)["'];$""", re.MULTILINE)
ADDRESS = re.compile(r"""(?:href|src)="([^"]+)\"""")


def text(path: str) -> str:
    return FILES[path].body.decode()


def resolved(importer: str, name: str) -> str:
    parts: list[str] = []
    for part in (PurePosixPath(importer).parent / name).parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return str(PurePosixPath(*parts))


def imports(path: str) -> set[str]:
    return {resolved(path, name) for name in IMPORT.findall(text(path))}


def test_every_file_has_a_path_a_type_and_an_etag_of_its_content() -> None:
    assert FILES["/"].content_type == b"text/html; charset=utf-8"
    assert all(path == "/" or path.startswith(FOLDER) for path in FILES)
    assert len({file.etag for file in FILES.values()}) == len(FILES)
    assert {file.content_type.partition(b";")[0] for file in FILES.values()} == {
        b"text/html",
        b"text/javascript",
        b"text/css",
        b"image/svg+xml",
    }


def test_everything_that_the_page_names_is_there() -> None:
    missing = {address for address in ADDRESS.findall(text("/")) if address not in FILES}
    for path in SCRIPTS:
        missing |= imports(path) - FILES.keys()
    assert missing == set()


def test_every_script_and_style_is_used() -> None:
    pending = [address for address in ADDRESS.findall(text("/")) if address in FILES]
    used = {"/", f"{FOLDER}icon.svg"}
    while pending:
        path = pending.pop()
        if path not in used:
            used.add(path)
            pending += imports(path)
    assert FILES.keys() - used == set()


def test_the_page_preloads_every_module_that_its_first_script_imports() -> None:
    """So that a browser far away fetches all of them at once. Modules of pages are imported when they are opened."""
    first = f"{FOLDER}app.js"
    pending, needed = [first], set[str]()
    while pending:
        path = pending.pop()
        if path not in needed:
            needed.add(path)
            pending += {resolved(path, name) for name in STATIC_IMPORT.findall(text(path))}
    assert set(re.findall(r'rel="modulepreload" href="([^"]+)"', text("/"))) == needed - {first}


@pytest.mark.parametrize("path", SCRIPTS)
def test_no_script_makes_html_or_code_from_text(path: str) -> None:
    source = text(path)
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|setHTML"
    assert re.findall(forbidden, source) == []
    # `setAttribute("style", …)` is an inline style. Properties of `style` are not.
    assert not re.search(r"""["']style["']\s*[,:]""", source)


def test_no_file_names_another_server() -> None:
    """`http://www.w3.org/2000/svg` is the name of SVG, and is never fetched."""
    for path, file in FILES.items():
        found = re.findall(rb"https?://[^\s\"'`)]+", file.body)
        assert set(found) <= {b"http://www.w3.org/2000/svg"}, path


def test_the_page_has_no_inline_script_or_style() -> None:
    page = text("/")
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", page)


def test_keys_are_not_stored() -> None:
    for path in SCRIPTS:
        if path != f"{FOLDER}core/theme.js":
            assert not re.search(r"localStorage|sessionStorage|indexedDB|document\.cookie", text(path)), path


def test_the_files_are_small() -> None:
    def size(file: ConsoleFile) -> int:
        return len(file.body)

    assert max(map(size, FILES.values())) < 20_000
    assert sum(map(size, FILES.values())) < 300_000


def test_a_class_has_its_style_in_one_file() -> None:
    """Two pages that use one name for two things would change each other."""
    files_by_class: dict[str, set[str]] = {}
    for path in FILES:
        if path.endswith(".css"):
            style = re.sub(r"/\*.*?\*/", "", text(path), flags=re.DOTALL)
            for selectors in re.findall(r"([^{}]+)\{", style):
                for name in re.findall(r"(?:^|,)\s*\.([a-z-]+)\s*(?=,|$)", selectors.strip()):
                    files_by_class.setdefault(name, set()).add(path)
    assert {name: paths for name, paths in files_by_class.items() if len(paths) > 1} == {}
