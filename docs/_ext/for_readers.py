# ruff: noqa: INP001 - no package
"""What the site makes of plain Markdown: rows with anchors, cards for phones, folded lines, pictures for dark pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

#: A table whose first column has one of these names has an anchor for each row: `option-key`, `setting-throttle_url`.
ANCHORED = {"option", "setting"}
#: Longer lines are folded; shorter ones keep their columns, and scroll on a small screen.
LONGEST = 140
#: A table with fewer columns fits on a phone.
CARDS = 3


def rows_of(part: nodes.Element) -> Iterator[list[nodes.entry]]:
    for row in part.findall(nodes.row):
        yield list(row.findall(nodes.entry))


def parts_of(table: nodes.table) -> tuple[list[str], nodes.Element]:
    """Return the names of the columns, and the body."""
    head, body = next(table.findall(nodes.thead)), next(table.findall(nodes.tbody))
    return [cell.astext() for cell in next(rows_of(head))], body


class RowAnchors(SphinxTransform):
    """Give each option and each setting an anchor, and make its name a link to it."""

    default_priority = 500

    def apply(self, **_: object) -> None:
        for table in self.document.findall(nodes.table):
            columns, body = parts_of(table)
            if columns[0] in ANCHORED:
                for cells in rows_of(body):
                    self._anchor(cells[0], f"{columns[0]}-{cells[0].astext()}")

    def _anchor(self, cell: nodes.entry, anchor: str) -> None:
        row, name = cell.parent, next(cell.findall(nodes.paragraph))
        row["ids"].append(anchor)
        row["names"].append(anchor)
        self.document.note_explicit_target(row)
        link = nodes.reference("", "", *name.children, refid=anchor, classes=["row-name"])
        name.children = []
        name.append(link)


class DarkPictures(SphinxTransform):
    """Show `name-dark.png` instead of `name.png` on a dark page, where both are there."""

    default_priority = 500

    def apply(self, **_: object) -> None:
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for image in list(self.document.findall(nodes.image)):
            light = Path(image["uri"])
            dark = light.with_stem(f"{light.stem}-dark")
            if (folder / dark).exists():
                other = image.deepcopy()
                other["uri"] = str(dark)
                image["classes"].append("only-light")
                other["classes"].append("only-dark")
                image.parent.insert(image.parent.index(image) + 1, other)


class LongLines(SphinxTransform):
    """Mark blocks with a line that is to be folded."""

    default_priority = 500

    def apply(self, **_: object) -> None:
        for block in self.document.findall(nodes.literal_block):
            if any(len(line) > LONGEST for line in block.astext().splitlines()):
                block["classes"].append("folded")


class Cards(SphinxPostTransform):
    """Write the name of its column into each cell, which a phone shows instead of the head of the table."""

    default_priority = 500
    builders = ("html",)

    def run(self, **_: object) -> None:
        for table in self.document.findall(nodes.table):
            columns, body = parts_of(table)
            if len(columns) >= CARDS:
                table["classes"].append("cards")
                for cells in rows_of(body):
                    for column, cell in zip(columns[1:], cells[1:], strict=True):
                        label(cell, column)


def label(cell: nodes.entry, column: str) -> None:
    if cell.astext():
        cell.insert(0, nodes.inline("", column, classes=["label"]))
    else:
        cell["classes"].append("empty")


def setup(app: Sphinx) -> dict[str, bool]:
    for each in (RowAnchors, DarkPictures, LongLines):
        app.add_transform(each)
    app.add_post_transform(Cards)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
