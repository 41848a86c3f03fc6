"""README.md, CHANGELOG.md and all pages below docs/: every link leads to a file that is there, and every anchor to a
heading. No page is left out of the menu of the site."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from docs_build.site import nav
from tests.conftest import REPOSITORY

PAGES: Final = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
FENCED: Final = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)
CODE: Final = re.compile(r"`[^`\n]*`")
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
HEADING: Final = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


class Link(NamedTuple):
    page: Path
    target: str


def links() -> Iterator[Link]:
    """All links to files of the repository."""
    for page in PAGES:
        text = CODE.sub("`code`", FENCED.sub("", page.read_text("utf-8")))
        for target in LINK.findall(text):
            if not re.match(r"[a-z]+:", target):
                yield Link(page, target)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Of the headings of a page, as the site makes them. A heading that comes again has a number at its end."""
    found: list[str] = []
    for heading in HEADING.findall(FENCED.sub("", page.read_text("utf-8"))):
        anchor = slug(heading)
        found.append(f"{anchor}_{found.count(anchor)}" if anchor in found else anchor)
    return frozenset(found)


def slug(heading: str) -> str:
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def problem(link: Link) -> str | None:
    path, _, anchor = link.target.partition("#")
    file = link.page.parent.joinpath(path).resolve() if path else link.page
    if not file.exists():
        return "there is no such file"
    if anchor and anchor not in anchors(file):
        return "there is no such heading"
    return None


def test_every_link_leads_somewhere() -> None:
    checked = list(links())
    assert len(checked) > 300
    dead = [f"{link.page.relative_to(REPOSITORY)}: {link.target}: {why}" for link in checked if (why := problem(link))]
    if dead:
        pytest.fail("\n".join(dead), pytrace=False)


def test_a_dead_link_and_a_dead_anchor_are_found() -> None:
    page = REPOSITORY / "docs" / "http.md"
    assert problem(Link(page, "nowhere.md")) == "there is no such file"
    assert problem(Link(page, "cli.md#nowhere")) == "there is no such heading"
    assert problem(Link(page, "#nowhere")) == "there is no such heading"
    assert problem(Link(page, "cli.md#rules-of-every-command")) is None


def test_every_page_is_in_the_menu_once_and_begins_with_a_title() -> None:
    told = [path for _, _, path in nav()]
    pages = {str(page.relative_to(REPOSITORY / "docs")) for page in PAGES[2:]}
    assert sorted(told) == sorted(pages | {"changelog.md"})
    for page in PAGES:
        text = page.read_text("utf-8")
        assert re.match(r"(<!--.*-->\n\n)?# \S", text), page
