"""Tables as Markdown, CSV and LaTeX, and numbers as text."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from abps.evaluate.calibration import Interval

#: What stands where there is nothing to say.
NOTHING = "–"


@dataclass(frozen=True)
class Table:
    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return as_markdown(self)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows
        )
        return f"<table><caption>{escape(self.caption)}</caption><tr>{head}</tr>{body}</table>"


# ---------------------------------------------------------------- numbers as text


def number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".replace("-", "−") if math.isfinite(value) else NOTHING


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign; a real minus, and no sign on zero.

    >>> signed(0.0123), signed(-0.5), signed(-0.0001)
    ('+0.012', '−0.500', '0.000')
    """
    if not math.isfinite(value):
        return NOTHING
    text = f"{value:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def volume(megabytes: float) -> str:
    """An amount of data in the unit that suits it.

    >>> volume(0.0), volume(0.00042), volume(0.0371), volume(12.34), volume(4321)
    ('0 kB', '0.42 kB', '37 kB', '12.3 MB', '4.3 GB')
    """
    if not math.isfinite(megabytes):
        return NOTHING
    if megabytes >= 1000:
        return f"{megabytes / 1000:.1f} GB"
    if megabytes >= 1:
        return f"{megabytes:.1f} MB"
    kilo = 1000 * megabytes
    return f"{kilo:.0f} kB" if kilo >= 10 or kilo == 0 else f"{kilo:.2g} kB"


def in_ten(chance: float) -> str:
    """A probability as a natural frequency.

    >>> in_ten(0.93), in_ten(0.998), in_ten(0.02)
    ('9 in 10', 'more than 99 in 100', '2 in 100')
    """
    if chance > 0.99:
        return "more than 99 in 100"
    if chance < 0.01:
        return "less than 1 in 100"
    if chance > 0.95 or chance < 0.1:
        return f"{100 * chance:.0f} in 100"
    return f"{10 * chance:.0f} in 10"


def span(found: Interval) -> str:
    """The ends of an interval of a difference.

    >>> span(Interval(0.1, -0.02, 0.22))
    '−0.020 to +0.220'
    """
    return f"{signed(found.low)} to {signed(found.high)}"


def plain(value: float) -> str:
    """A number for programs; nothing where there is none."""
    return f"{value:.6f}".rstrip("0").rstrip(".") if math.isfinite(value) else ""


# ---------------------------------------------------------------- the three forms


def as_markdown(table: Table) -> str:
    """A GitHub table with caption and notes; what a name holds is text, not markup."""

    def plain(text: str) -> str:
        text = " ".join(escape(text, quote=False).split())
        return re.sub(r"([\\`*_\[\]|])", r"\\\1", text)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(plain(cell) for cell in cells) + " |"

    ruler = line(["---", *(["---:"] * (len(table.columns) - 1))])
    body = [line(row) for row in table.rows]
    notes = [f"- {plain(note)}" for note in table.notes]
    parts = [f"**{plain(table.caption)}**", "", line(table.columns), ruler, *body, "", *notes]
    return "\n".join(parts).rstrip() + "\n"


def as_csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([harmless(cell) for cell in row] for row in table.rows)
    return out.getvalue()


def harmless(cell: str) -> str:
    """A cell that a spreadsheet takes for text, whatever a center is called; numbers stay numbers.

    >>> harmless("=1+1"), harmless("-0.5"), harmless("north")
    ("'=1+1", '-0.5', 'north')
    """
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "×": r"$\times$", "−": r"$-$", "–": "--", "κ": r"$\kappa$", "+": "+",
    "ε": r"$\varepsilon$", "δ": r"$\delta$",
}  # fmt: skip


def as_latex(table: Table) -> str:
    """A booktabs table; every special character is escaped."""

    def cell(text: str) -> str:
        return "".join(_LATEX.get(character, character) for character in text)

    body = "\n".join("  " + " & ".join(cell(c) for c in row) + r" \\" for row in table.rows)
    head = " & ".join(cell(c) for c in table.columns)
    notes = " ".join(cell(note) for note in table.notes)
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{cell(table.caption)} {notes}}}\n"
        f"\\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}\n\\toprule\n"
        f"  {head} \\\\\n\\midrule\n{body}\n\\bottomrule\n"
        "\\end{tabular}\n\\end{table}\n"
    )
