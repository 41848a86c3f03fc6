"""What a fake disk holds: files, directories, and the changes to them that no sync has covered yet.

A file holds its bytes once, as the process sees them. Each pending change remembers what it overwrote, so a
sync only clears a list, and a crash undoes the list and applies the surviving part of it again. A second copy of each
file would double the cost of each clone of a disk and of each preallocation.

A directory has few entries and keeps them twice instead.

No locks here: the disk that owns the state has one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Write:
    """A pending write: the new bytes and the bytes before it."""

    order: int
    node: "FileNode"
    offset: int
    data: bytes
    old: bytes
    old_size: int

    def undo(self, content: bytearray) -> None:
        del content[self.old_size :]
        content[self.offset : self.offset + len(self.old)] = self.old

    def apply(self, content: bytearray) -> None:
        patch(content, self.offset, self.data)

    def redo(self) -> None:
        self.apply(self.node.content)

    def copied(self, copies: "Copies") -> "Write":
        return Write(self.order, copies.file(self.node), self.offset, self.data, self.old, self.old_size)


@dataclass(slots=True, eq=False)
class Resize:
    """A pending change of size: a truncate or a preallocate."""

    order: int
    node: "FileNode"
    size: int
    old_size: int
    cut: bytes

    def undo(self, content: bytearray) -> None:
        if self.size >= self.old_size:
            del content[self.old_size :]
        else:
            content += self.cut

    def apply(self, content: bytearray) -> None:
        resize(content, self.size)

    def redo(self) -> None:
        self.apply(self.node.content)

    def copied(self, copies: "Copies") -> "Resize":
        return Resize(self.order, copies.file(self.node), self.size, self.old_size, self.cut)


@dataclass(slots=True, eq=False)
class Link:
    """A pending create or mkdir."""

    order: int
    directory: "DirectoryNode"
    name: str
    node: "Node"

    def redo(self) -> None:
        self.directory.set_durable(self.name, self.node)

    def copied(self, copies: "Copies") -> "Link":
        return Link(self.order, copies.directory(self.directory), self.name, copies.node(self.node))


@dataclass(slots=True, eq=False)
class Unlink:
    """A pending unlink or rmdir."""

    order: int
    directory: "DirectoryNode"
    name: str

    def redo(self) -> None:
        # A directory can only be gone if its entries went before.
        if not _is_full(self.directory.durable.get(self.name)):
            self.directory.drop_durable(self.name)

    def copied(self, copies: "Copies") -> "Unlink":
        return Unlink(self.order, copies.directory(self.directory), self.name)


@dataclass(slots=True, eq=False)
class Rename:
    """A pending rename, which happens as a whole or not at all."""

    order: int
    directory: "DirectoryNode"
    name: str
    node: "Node"

    def redo(self) -> None:
        if _is_full(self.directory.durable.get(self.name)):
            return
        # The old name is the one that is durable, not the source: an earlier rename of the same file may
        # have been lost, and a file must not come back under two names.
        if self.node.durable_place is not None:
            directory, name = self.node.durable_place
            directory.drop_durable(name)
        self.directory.set_durable(self.name, self.node)

    def copied(self, copies: "Copies") -> "Rename":
        return Rename(self.order, copies.directory(self.directory), self.name, copies.node(self.node))


FileChange = Write | Resize
DirectoryChange = Link | Unlink | Rename
Change = FileChange | DirectoryChange


@dataclass(slots=True, eq=False)
class FileNode:
    """A file apart from its name."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[FileChange] = field(default_factory=list)
    # The bytes on the disk, once a failed sync has made them differ from `content` by more than `pending`.
    forsaken: bytearray | None = None
    # A bytearray that is mapped cannot change size, so a file that grows under a map moves to a new one.
    # The old ones get each write as well, since a map shows what is written in place.
    outgrown: list[bytearray] = field(default_factory=list)
    # The directory and name that lead to it on the disk.
    durable_place: "tuple[DirectoryNode, str] | None" = None
    is_linked: bool = True
    is_locked: bool = False

    def put(self, offset: int, data: bytes) -> None:
        try:
            patch(self.content, offset, data)
        except BufferError:
            self._outgrow()
            patch(self.content, offset, data)
        for content in self.outgrown:
            _patch_inside(content, offset, data)

    def resize(self, size: int) -> None:
        try:
            resize(self.content, size)
        except BufferError:
            self._outgrow()
            resize(self.content, size)

    def _outgrow(self) -> None:
        self.outgrown = [content for content in self.outgrown if _is_mapped(content)]
        self.outgrown.append(self.content)
        self.content = bytearray(self.content)

    def durable_content(self) -> bytearray:
        if self.forsaken is not None:
            return bytearray(self.forsaken)
        content = bytearray(self.content)
        for change in reversed(self.pending):
            change.undo(content)
        return content

    def settle(self) -> None:
        """A sync that works."""
        if self.forsaken is not None:
            for change in self.pending:
                change.apply(self.forsaken)
        self.pending = []

    def forsake(self) -> None:
        """A sync that fails."""
        self.forsaken = self.durable_content()
        self.pending = []

    def rewind(self) -> list[FileChange]:
        """Goes back to the bytes on the disk, and returns the pending changes."""
        pending = self.pending
        self.content = self.durable_content()
        self.pending = []
        self.forsaken = None
        self.outgrown = []
        return pending


@dataclass(slots=True, eq=False)
class DirectoryNode:
    """A directory apart from its name: its entries as a process sees them, and as a crash would leave them at worst."""

    entries: dict[str, "Node"] = field(default_factory=dict)
    durable: dict[str, "Node"] = field(default_factory=dict)
    pending: list[DirectoryChange] = field(default_factory=list)
    # Directories that share a pending rename with this one.
    tied: list["DirectoryNode"] = field(default_factory=list)
    durable_place: "tuple[DirectoryNode, str] | None" = None

    def set_durable(self, name: str, node: "Node") -> None:
        self.drop_durable(name)
        self.durable[name] = node
        node.durable_place = (self, name)

    def drop_durable(self, name: str) -> None:
        node = self.durable.pop(name, None)
        if node is not None:
            node.durable_place = None

    def tied_group(self) -> list["DirectoryNode"]:
        """This directory and all that are tied to it, directly or through others."""
        group = {self: None}
        waiting = [self]
        while waiting:
            for directory in waiting.pop().tied:
                if directory not in group:
                    group[directory] = None
                    waiting.append(directory)
        return list(group)

    def rewind(self) -> list[DirectoryChange]:
        pending = self.pending
        self.pending = []
        self.tied = []
        return pending


Node = FileNode | DirectoryNode


class Copies:
    """Copies nodes once each, so that a copy has the shape of the original."""

    def __init__(self) -> None:
        self._files: dict[FileNode, FileNode] = {}
        self._directories: dict[DirectoryNode, DirectoryNode] = {}

    def node(self, node: Node) -> Node:
        return self.file(node) if isinstance(node, FileNode) else self.directory(node)

    def file(self, node: FileNode) -> FileNode:
        if node in self._files:
            return self._files[node]
        copy = self._files[node] = FileNode(bytearray(node.content), is_linked=node.is_linked)
        copy.forsaken = None if node.forsaken is None else bytearray(node.forsaken)
        copy.durable_place = self._place(node)
        copy.pending = [change.copied(self) for change in node.pending]
        return copy

    def directory(self, node: DirectoryNode) -> DirectoryNode:
        if node in self._directories:
            return self._directories[node]
        copy = self._directories[node] = DirectoryNode()
        copy.durable_place = self._place(node)
        copy.entries = {name: self.node(entry) for name, entry in node.entries.items()}
        copy.durable = {name: self.node(entry) for name, entry in node.durable.items()}
        copy.pending = [change.copied(self) for change in node.pending]
        copy.tied = [self.directory(tied) for tied in node.tied]
        return copy

    def _place(self, node: Node) -> tuple[DirectoryNode, str] | None:
        if node.durable_place is None:
            return None
        directory, name = node.durable_place
        return self.directory(directory), name


def order_of(change: Change) -> int:
    return change.order


def patch(content: bytearray, offset: int, data: bytes) -> None:
    """Writes into the content, with zeros between its end and a write that starts beyond."""
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def durable_directories(root: DirectoryNode) -> Iterator[DirectoryNode]:
    yield root
    for node in root.durable.values():
        if isinstance(node, DirectoryNode):
            yield from durable_directories(node)


def walk(directory: DirectoryNode, path: str, *, is_durable: bool) -> Iterator[tuple[str, FileNode]]:
    """Every file below, with its path, in order."""
    for name, node in sorted((directory.durable if is_durable else directory.entries).items()):
        if isinstance(node, FileNode):
            yield f"{path}/{name}", node
        else:
            yield from walk(node, f"{path}/{name}", is_durable=is_durable)


def _patch_inside(content: bytearray, offset: int, data: bytes) -> None:
    """Writes the part that falls within the content."""
    room = max(len(content) - offset, 0)
    content[offset : offset + min(room, len(data))] = data[:room]


def _is_full(node: Node | None) -> bool:
    return isinstance(node, DirectoryNode) and bool(node.durable)


def _is_mapped(content: bytearray) -> bool:
    try:
        content.append(0)
    except BufferError:
        return True
    del content[-1:]
    return False
