"""What tests find in the pages for users, by ids that stand in comments, so that no test pins a sentence.

`<!-- table: NAME -->` stands on the line above a table, `<!-- row: NAME -->` in a row, `<!-- commands: NAME, NAME -->`
below a heading. A page may be reworded as long as it keeps them; commands and code blocks are run as they are written.
"""

from __future__ import annotations

import re

from tests.support.paths import ROOT


def page(name: str) -> str:
    """The text of a page of docs/."""
    return (ROOT / "docs" / f"{name}.md").read_text("utf-8")


def table(text: str, name: str) -> list[list[str]]:
    """The cells of the rows of that table, without its head."""
    [found] = re.findall(rf"^<!-- table: {name} -->\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [_cells(line) for line in found.splitlines()[2:]]


def row_ids(text: str, name: str) -> list[str]:
    """The ids of the rows of that table; a row without one is an error."""
    found = [re.match(r"<!-- row: (\S+) -->", row[0]) for row in table(text, name)]
    assert all(found), f"table {name}: expected an id in every row"
    return [row_id[1] for row_id in found if row_id]


def section(text: str, command: str) -> str:
    """What stands below the heading whose comment names that noun or role of the command line."""
    sections: list[tuple[str, str]] = re.findall(
        r"^<!-- commands: ([\w, ]+) -->\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )
    [found] = [body for names, body in sections if command in names.split(", ")]
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
