"""The docs site: `python -m docs_build.site` (or `make docs`) builds it into `build/site`, as plain files.

The pages are those of `docs/`, which also read well without the site. Two things are beside them in the repository:
the changelog and the examples. So the site is built from a copy of `docs/` in `build/docs` that has both, with the
links to them changed. Nothing in the site comes from another server; the search works from the file system, too.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
CONFIG: Final = REPOSITORY / "zensical.toml"
DOCS: Final = REPOSITORY / "docs"
BUILD: Final = REPOSITORY / "build"
STAGED: Final = BUILD / "docs"
SITE: Final = BUILD / "site"
MORE_GUIDES: Final = "        # Pages of docs/ that are named nowhere in this menu come here."

# A script, style, font or picture that a browser would load from another server. Links are no such thing.
FOREIGN: Final = re.compile(
    r"<(?:script|img|iframe)[^>]+src=\"https?:|<link[^>]+href=\"https?:|@import|url\(['\"]?https?:"
)


def config() -> str:
    """The settings of the site. A page directly below `docs/` that the menu does not name is added to its guides."""
    text = CONFIG.read_text("utf-8")
    named = {path for _, _, path in _entries("", tomllib.loads(text)["project"]["nav"])}
    more = [page for page in sorted(DOCS.glob("*.md")) if page.name not in named]
    lines = [f'        {{ "{title(page)}" = "{page.name}" }},' for page in more]
    assert MORE_GUIDES in text
    return text.replace(MORE_GUIDES, "\n".join(lines))


def title(page: Path) -> str:
    return page.read_text("utf-8").partition("# ")[2].partition("\n")[0]


def nav() -> list[tuple[str, str, str]]:
    """Section, title and path of each page of the site, in the order of its menu. The first pages have no section."""
    return list(_entries("", tomllib.loads(config())["project"]["nav"]))


def _entries(section: str, entries: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for entry in entries:
        for name, target in entry.items():
            if isinstance(target, str):
                yield section, name, target
            else:
                yield from _entries(name, target)


def stage() -> None:
    """Makes the copy of the pages that the site is built from."""
    shutil.rmtree(STAGED, ignore_errors=True)
    BUILD.mkdir(exist_ok=True)
    BUILD.joinpath("zensical.toml").write_text(config(), "utf-8")
    shutil.copytree(DOCS, STAGED)
    shutil.copytree(REPOSITORY / "examples", STAGED / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    changelog = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    STAGED.joinpath("changelog.md").write_text(changelog.replace("](docs/", "]("), "utf-8")
    for page in STAGED.rglob("*.md"):
        text = page.read_text("utf-8")
        page.write_text(_inside(text, up="../" * len(page.relative_to(STAGED).parts)), "utf-8")


def _inside(text: str, *, up: str) -> str:
    """Links to files beside `docs/` become links to their copies."""
    above = up.removeprefix("../")
    text = text.replace(f"]({up}CHANGELOG.md", f"]({above}changelog.md").replace(
        f"]({up}examples/", f"]({above}examples/"
    )
    return text.replace(f"]({up}README.md", f"]({above}index.md")


def build() -> None:
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"],
        cwd=BUILD,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "NO_COLOR": "1"},
    )


def foreign_sources() -> list[str]:
    """Whatever a page of the built site would load from another server."""
    pages = [*SITE.rglob("*.html"), *SITE.rglob("*.css")]
    return [
        f"{page.relative_to(SITE)}: {found[0]}" for page in pages for found in FOREIGN.finditer(page.read_text("utf-8"))
    ]


def main() -> None:
    build()
    if foreign := foreign_sources():
        sys.exit("the site would load files from other servers:\n" + "\n".join(foreign))
    pages = len(list(SITE.rglob("*.html")))
    sys.stdout.write(f"{pages} pages; open {SITE.relative_to(REPOSITORY)}/index.html\n")


if __name__ == "__main__":
    main()
