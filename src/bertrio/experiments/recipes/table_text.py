"""A paper's tables on the terminal, in Markdown and as CSV."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from rich.console import Console
from rich.text import Text

from bertrio.core.console import output_console, print_table
from bertrio.core.files import write_csv, write_text
from bertrio.experiments.dvc_experiments import short_digest
from bertrio.experiments.recipes.comparable import Runs
from bertrio.experiments.recipes.rows import Table
from bertrio.experiments.recipes.tables import COLUMNS, CONVENTIONS, FACTS, PaperTables

NO_FIGURE = "-"
MAX_NAME = 200  # characters of a file's name, of which systems allow 255
ALONE = "°"  # marks a difference, see `LEGEND`
NAMES = {metric: name for name, metric in CONVENTIONS.items()}
LEGEND = (
    "Compare rows within a column: reported and measured may differ in budget, data and encoder. Compare minutes only "
    "between rows timed on the same device in the same precision. ± is the standard deviation over seeds. In brackets: "
    "the 95 % interval, of a score with one seed over rows, of a difference by the "
    f"paired test over rows and seeds. {ALONE}: over rows alone, for both sides have a single seed."
)
DocumentPart: TypeAlias = "str | pd.DataFrame"  # a heading or paragraph in Markdown, or a table of text


def show(document: Iterable[DocumentPart], console: Console | None = None) -> None:
    """Print a document, by default to standard output. Paragraphs do not wrap, so that commands stay on one line."""
    console = console or output_console()
    for block in document:
        if isinstance(block, pd.DataFrame):
            print_table(block, to=console)
        elif block.startswith("#"):
            console.print(Text(f"\n{block.lstrip('# ')}"), style="bold")
        else:
            console.print(Text(block), soft_wrap=True)


def to_markdown(document: Iterable[DocumentPart]) -> str:
    """Return a document in Markdown."""
    return "\n\n".join(block if isinstance(block, str) else _markdown_table(block) for block in document) + "\n"


def _markdown_table(frame: pd.DataFrame) -> str:
    return frame.map(lambda cell: cell.replace("|", "\\|")).to_markdown(index=False, disable_numparse=True)


def signed(value: float, low: float, high: float) -> str:
    """Return a difference with its interval, such as +0.012 [-0.003, +0.027]."""
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def write_tables(tables: PaperTables, folder: str | Path, plots: bool = False) -> list[Path]:
    """Write the tables as Markdown and CSV and, with `plots`, the plots that the Markdown embeds.

    File names consist of paper, budget, source, encoder and overrides, long ones with a digest in place of the end.

    Returns:
        The written files, Markdown first.
    """
    setting = tables.runs.setting
    parts = [tables.paper.name, setting.budget, setting.source, setting.encoder, *setting.changed]
    name = re.sub(r"[^\w.-]+", "-", "-".join(part for part in parts if part))
    if len(name) > MAX_NAME:
        name = f"{name[:MAX_NAME]}-{short_digest(name)}"
    path = Path(folder) / f"{name}.md"
    pictures: Mapping[str, Sequence[Path]] = {}
    if plots:
        from bertrio.experiments.recipes.table_plots import draw_tables

        pictures = draw_tables(tables, path.with_suffix(""))
    write_text(path, to_markdown(table_document(tables, pictures)))
    write_csv(frame(tables), path.with_suffix(".csv"))
    return [path, path.with_suffix(".csv"), *[picture for paths in pictures.values() for picture in paths]]


def table_document(tables: PaperTables, pictures: Mapping[str, Sequence[Path]] | None = None) -> Iterator[DocumentPart]:
    """Yield a paper's tables as a document, with the pictures of each table below it."""
    paper = tables.paper
    yield f"# {paper.name}: {paper.title}" + ("" if paper.own else ", reported beside measured")
    yield from _head(tables)
    for name, split, part in tables.parts():
        table = paper.tables[name]
        yield f"## {name}, {split}: {table.title_test or table.title if split == 'test' else table.title}"
        if split == "dev" and (ticks := _ticks(table)) is not None:
            yield ticks
        for title, cells in _text_tables(split, part, tables):
            if len(cells.columns) > 1:
                yield f"### {title}"
                yield cells
        yield from _notes(name, split, part, tables)
        if pictures and split == "dev":
            yield from (f"![{name}]({path.parent.name}/{path.name})" for path in pictures.get(name, ()))


def _head(tables: PaperTables) -> Iterator[str]:
    """Yield the introduction: sources of both kinds of figures, and the legend."""
    runs, setting, paper = tables.runs, tables.runs.setting, tables.paper
    if not paper.own:
        yield "Reported: by the paper, of bert-base-uncased on its own data, one run a row."
    if not runs.all:
        command = setting.run_command(paper.name)
        yield f"Measured: nothing yet{setting.flags and f' with {setting.flags}'}; {command} measures all rows."
        return
    seeds = sorted({len(row) for row in runs.by_row.values()})
    yield f"Measured: {setting.title}; seeds of a row: {' or '.join(map(str, seeds))}."
    yield LEGEND
    yield from left_out(runs)


def left_out(runs: Runs) -> Iterator[str]:
    """Yield which of several settings was taken, and the number of runs with other overrides."""
    if runs.note:
        yield runs.note
    if runs.left_out:
        yield f"Left out are runs with other overrides (-S), {runs.left_out} of them; name these with -S to see them."


def _text_tables(split: str, part: pd.DataFrame, tables: PaperTables) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield tables of text with their titles: scores of tasks, overall scores, differences on dev, other figures."""
    lines, rows = list(part.itertuples()), part.drop_duplicates("row").set_index("row")
    text = part.assign(
        paper=[None if pd.isna(line.reported) else f"{line.reported:.3f}" for line in lines],
        measured=[_score(line) for line in lines],
        minus=[_difference(line) for line in lines],
    ).pivot(index="row", columns="metric", values=["paper", "measured", "minus"])
    text.columns = [f"{NAMES.get(metric, metric)}: {kind}" for kind, metric in text.columns]
    scores, overall, differences = (
        text.reindex(rows.index)[[f"{metric}: {kind}" for metric in metrics for kind in kinds]]
        for kinds, metrics in (
            (["paper", "measured"], tables.main_metrics),
            (["paper", "measured"], ["overall", *NAMES.values()]),
            (["minus"], [*tables.main_metrics, *NAMES.values()]),
        )
    )
    title = ", ".join(f"{task} {metric}" for task, metric in tables.main_metrics.items())
    run_of = rows["run_as"].where(rows["run_as"] != rows.index)
    yield f"Scores: {title}", _text_table(scores, {"run of": run_of, "seeds": rows["seeds"]})
    yield "Overall score: as printed, and by both conventions", _text_table(overall)
    if split == "dev":
        against = " or ".join(part["against"].dropna().unique())
        yield f"Measured minus {against}", _text_table(differences)
    facts = {
        column.replace("_", " "): rows[column].map("{:.3g}".format, na_action="ignore")
        for fact in FACTS
        for column in (f"paper: {fact}", fact)
    }
    if split == "dev":
        facts["timed on"] = rows["timed_on"]
        facts["MB"] = rows["peak_memory_mb"].map("{:,.0f}".format, na_action="ignore")
    yield "Cost of training, and what else the paper prints", _text_table(rows[[]], facts)


def _ticks(table: Table) -> pd.DataFrame | None:
    """Return the extensions of each row as a matrix of ticks, as the paper prints it; None if there are none."""
    names = list(dict.fromkeys(name for row in table.rows.values() for name in row.extensions))
    ticks = [{name: "x" if name in row.extensions else "" for name in names} for row in table.rows.values()]
    return pd.DataFrame(ticks, index=pd.Index(table.rows, name="row")).reset_index() if names else None


def _text_table(cells: pd.DataFrame, extra: Mapping[str, pd.Series] | None = None) -> pd.DataFrame:
    """Return a table of text without the empty columns."""
    filled = cells.assign(**extra or {}).dropna(axis="columns", how="all")
    return filled.where(filled.notna(), NO_FIGURE).astype(str).reset_index()


def _score(line: Any) -> str | None:
    if pd.isna(line.measured):
        return None
    spread = "" if pd.isna(line.deviation) else f" ±{line.deviation:.3f}"
    interval = "" if pd.isna(line.low) else f" [{line.low:.3f}, {line.high:.3f}]"
    return f"{line.measured:.3f}{spread}{interval}"


def _difference(line: Any) -> str | None:
    if pd.isna(line.difference):
        return None
    return signed(line.difference, line.difference_low, line.difference_high) + ALONE * line.rows_alone


def _notes(name: str, split: str, part: pd.DataFrame, tables: PaperTables) -> Iterator[str]:
    """Yield notes on one part: the number of measured rows, how to measure the rest, and failed comparisons."""
    runnable = part[~part["literature"]]
    rows, measured = runnable.drop_duplicates("row"), runnable.dropna(subset="measured")["row"].nunique()
    no_labels = split == "test" and tables.runs.setting.source == "cs224n" and not measured
    yield f"{measured} of {len(rows)} rows measured" + ": the course's test labels are not public" * no_labels + "."
    if (rows["seeds"] == 0).any() and split == "dev":
        yield f"To measure the rest: {tables.runs.setting.run_command(f'{tables.paper.name}-{name}')}"
    if split == "dev":
        literature = [row for row in tables.paper.tables[name].rows.values() if row.literature]
        quoted = "" if tables.paper.own else " is quoted"  # a tool's row may be measured, see recipes/ours.yaml
        yield from (f"{row.name}{quoted}: {choice}." for row in literature for choice in row.choices)
        yield from (f"Not compared: {note}." for note in part["not_compared"].dropna().unique())


def frame(tables: PaperTables) -> pd.DataFrame:
    """Return all figures, one line per row and metric; `overall` is the overall score that the paper prints."""
    setting, figures = tables.runs.setting, tables.figures[[*COLUMNS]]
    common = {"paper": tables.paper.name, "budget": setting.budget, "source": setting.source}
    common |= {"encoder": setting.encoder, "overrides": ", ".join(setting.changed)}
    return figures.assign(**common)[[*common, *figures]]
