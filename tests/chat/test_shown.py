"""What a long message leaves on the screen."""

from __future__ import annotations

from exocli.chat.shown import FOLD_ABOVE, ROWS, folded, short
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len


def test_what_is_short_stays_whole() -> None:
    assert folded("one\ntwo", 40, "> ", ". ") == ["> one", ". two"]


def test_many_lines_leave_the_first_and_their_number() -> None:
    text = "\n".join(f"line {n} {'x' * 40 if n == 1 else ''}" for n in range(200))
    shown = folded(text, 20, "> ", ". ")
    size = f"(200 lines, {len(text):,} characters)"
    assert shown == ["> line 0 ", ". line 1 xxxxxxxxx…", ". line 2 ", f". … {size}"]


def test_one_long_line_leaves_its_beginning() -> None:
    (shown,) = folded("word " * 1000, 40, "> ", ". ")
    assert shown.startswith("> word word") and shown.endswith(" … (5,000 characters)")


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("\n\n\t漢 "), max_size=3000))
def test_it_takes_few_rows(text: str) -> None:
    rows = folded(text, 30, "> ", ". ")
    assert sum(max(1, -(-cell_len(row) // 30)) for row in rows) <= max(FOLD_ABOVE, ROWS + 1)


def test_short_counts_cells() -> None:
    assert short("漢字漢字", 8) == "漢字漢字" and short("漢字漢字字", 8) == "漢字漢 …"
    assert short("a\n b") == "a b"
