"""A paper's tables on the terminal, in Markdown and as CSV."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from rich.console import Console
from rich.text import Text

from bertrio.core.console import output_console, print_table
from bertrio.core.files import write_csv, write_text
from bertrio.experiments.recipes.tables import COLUMNS, CONVENTIONS, PaperTables
from bertrio.experiments.runs import Runs, firsts_of

FOLDER = "recipes/tables"
MISSING = "-"
ODD, ALONE = "*", "°"  # marks of cells, explained below the table and in `LEGEND`
NAMES = {metric: name for name, metric in CONVENTIONS.items()}
LEGEND = (
    "Compare rows within a column: reported and measured may differ in budget, data and encoder. ± is the standard "
    "deviation over seeds. In brackets: the 95 % interval, of a score with one seed over rows, of a difference by the "
    f"paired test over rows and seeds. {ALONE}: over rows alone, for a side has a single seed."
)
Block: TypeAlias = "str | pd.DataFrame"  # part of a document: a heading or paragraph in Markdown, or a table of texts


def show(document: Iterable[Block], console: Console | None = None) -> None:
    """Print a document to standard output. Paragraphs are not broken, so that a command in them stays on one line."""
    console = console or output_console()
    for block in document:
        if isinstance(block, pd.DataFrame):
            print_table(block, to=console)
        elif block.startswith("#"):
            console.print(Text(f"\n{block.lstrip('# ')}"), style="bold")
        else:
            console.print(Text(block), soft_wrap=True)


def to_markdown(document: Iterable[Block]) -> str:
    """Return a document in Markdown."""
    return "\n\n".join(block if isinstance(block, str) else _markdown_table(block) for block in document) + "\n"


def _markdown_table(frame: pd.DataFrame) -> str:
    return frame.map(lambda cell: cell.replace("|", "\\|")).to_markdown(index=False, disable_numparse=True)


def signed(value: float, low: float, high: float) -> str:
    """Return a difference with its interval, as in +0.012 [-0.003, +0.027]."""
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def write_tables(tables: PaperTables, folder: str | Path = FOLDER, plots: bool = False) -> list[Path]:
    """Write the tables as Markdown and CSV and, with `plots`, pictures that the Markdown shows.

    File names hold paper, budget, source, encoder and overrides.

    Returns:
        The files, the Markdown first.
    """
    setting = tables.runs.setting
    parts = [tables.paper.name, setting.budget, setting.source, setting.encoder, *setting.changed]
    path = Path(folder) / (re.sub(r"[^\w.-]+", "-", "-".join(part for part in parts if part)) + ".md")
    pictures: Mapping[str, Sequence[Path]] = {}
    if plots:
        from bertrio.experiments.recipes.table_plots import draw_tables

        pictures = draw_tables(tables, path.with_suffix(""))
    write_text(path, to_markdown(table_document(tables, pictures)))
    write_csv(frame(tables), path.with_suffix(".csv"))
    return [path, path.with_suffix(".csv"), *[one for paths in pictures.values() for one in paths]]


def table_document(tables: PaperTables, pictures: Mapping[str, Sequence[Path]] | None = None) -> Iterator[Block]:
    """Yield a paper's tables as a document; the pictures of each table, in a folder beside it, stand below it."""
    paper = tables.paper
    yield f"# {paper.name}: {paper.title}" + ("" if paper.own else ", reported beside measured")
    yield from _head(tables)
    for name, split, part in tables.parts():
        yield f"## {name}, {split}: {paper.tables[name].title}"
        for title, table in _sheets(split, part, tables):
            yield f"### {title}"
            yield table
        yield from _notes(name, split, part, tables)
        if pictures and split == "dev":
            yield from (f"![{name}]({path.parent.name}/{path.name})" for path in pictures.get(name, ()))


def _head(tables: PaperTables) -> Iterator[str]:
    """Yield what readers of any of the tables must know."""
    runs, setting, paper = tables.runs, tables.runs.setting, tables.paper
    if not paper.own:
        yield f"Reported: by the paper, of bert-base-uncased on its own data{_sizes([paper.data])}, one run a row."
    if not runs.all:
        command = f"bertrio recipes run {paper.name} {setting.to_run}".rstrip()
        yield f"Measured: nothing yet{setting.flags and f' with {setting.flags}'}; {command} measures all rows."
        return
    seeds = sorted({len(row) for row in runs.by_row.values()})
    yield (
        f"Measured: {setting.title}{_sizes([run.rows for run in runs.all])}; "
        f"seeds of a row: {' or '.join(map(str, seeds))}."
    )
    ways = Counter(f"{run.precision} on {run.device or 'cpu'}, threads {run.threads}" for run in runs.all)
    counts = "; ".join(f"{way}: {count} of {len(runs.all)} runs" for way, count in ways.most_common())
    yield f"Compare seconds only between runs that were computed in the same way ({counts}) on an idle machine."
    yield LEGEND
    yield from left_out(runs)


def left_out(runs: Runs) -> Iterator[str]:
    """Yield how many runs have other overrides, if any have."""
    if runs.left_out:
        yield f"Left out are runs with other overrides (-S), {runs.left_out} of them; name these with -S to see them."


def _sizes(runs: Sequence[Mapping[str, Mapping[str, int]]]) -> str:
    """Return the training and dev rows of each task, of all runs that differ: `, train/dev rows sst 8,544/1,101`."""
    sizes: dict[str, dict[str, None]] = {}
    for rows in runs:
        for task, splits in rows.items():
            known = [f"{splits[split]:,}" for split in ("train", "dev") if split in splits]
            sizes.setdefault(task, {})["/".join(known)] = None
    texts = [f"{task} {' or '.join(counts)}" for task, counts in sizes.items() if any(counts)]
    return f", train/dev rows {', '.join(texts)}" if texts else ""


def _sheets(split: str, part: pd.DataFrame, tables: PaperTables) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield tables of text with their titles: scores of tasks, overall scores and, on dev, differences and costs."""
    lines, rows = list(part.itertuples()), part.drop_duplicates("row").set_index("row")
    text = part.assign(
        paper=[None if pd.isna(line.reported) else f"{line.reported:.3f}{ODD * line.odd}" for line in lines],
        measured=[_score(line) for line in lines],
        minus=[_difference(line) for line in lines],
    ).pivot(index="row", columns="metric", values=["paper", "measured", "minus"])
    shared = {"row": [row if run == row else f"{row} (the run of {run})" for row, run in rows["run_as"].items()]}
    kinds = ["measured"] if tables.paper.own else ["paper", "measured"]
    overall = {name: metric for metric, name in NAMES.items()}
    printed = {} if tables.paper.own else {"as printed": text["paper", "overall"]}
    scores = _columns(text, kinds, {task: task for task in tables.firsts})
    title = ", ".join(f"{task} {metric}" for task, metric in tables.firsts.items())
    yield f"Scores: {title}", _texts(rows, shared | {"seeds": rows["seeds"]} | scores)
    yield "Overall score, by both conventions", _texts(rows, shared | printed | _columns(text, kinds, overall))
    if split == "dev":
        metrics = {NAMES.get(metric, metric): metric for metric in (*tables.firsts, *NAMES)}
        against = part["against"].dropna().unique()
        compared = _columns(text, ["minus"], metrics) if len(against) else {}
        costs = {
            "seconds": rows["seconds"].map("{:.0f}".format, na_action="ignore"),
            "MB": rows["peak_memory_mb"].map("{:,.0f}".format, na_action="ignore"),
            "paper: minutes": rows["minutes"].map("{:g}".format, na_action="ignore"),
        }
        title = "Seconds and peak memory of training" + "".join(f"; measured, minus {row}" for row in against)
        yield title, _texts(rows, {"row": rows.index} | compared | costs)


def _columns(text: pd.DataFrame, kinds: Sequence[str], names: Mapping[str, str]) -> dict[str, pd.Series]:
    """Return columns of cells for metrics by their names in the table, one for each kind of figure."""
    columns = {}
    for name, metric in names.items():
        for kind in kinds:
            columns[f"{name}: {kind}" if len(kinds) > 1 else name] = text[kind, metric]
    return columns


def _texts(rows: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    texts = pd.DataFrame(columns, index=rows.index)
    return texts.where(texts.notna(), MISSING).astype(str)


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
    """Yield how much of a part is measured, what is odd in it, and what could not be compared."""
    rows = part[~part["literature"]].drop_duplicates("row")
    measured = part.dropna(subset="measured")["row"].nunique()
    yield f"{measured} of {len(rows)} rows measured."
    if (rows["seeds"] == 0).any() and split == "dev":
        command = f"bertrio recipes run {tables.paper.name}-{name} {tables.runs.setting.to_run}".rstrip()
        yield f"To measure the rest: {command}"
    usual = {(task, metric) for task, metrics in tables.firsts.items() for metric in metrics.split(" or ")}
    others = [
        row
        for row, run_as in zip(rows["row"], rows["run_as"])
        if any(set(firsts_of(run).items()) != usual for run in tables.runs.of(run_as))
    ]
    if others:
        yield f"Measured by other metrics or over other tasks than the columns: {', '.join(others)}."
    if part["odd"].any():
        yield f"Marked {ODD}: an overall score that does not follow from the paper's figures."
    if split == "dev":
        yield from (f"Not compared: {note}." for note in part["not_compared"].dropna().unique())


def frame(tables: PaperTables) -> pd.DataFrame:
    """Return all figures, a line for each metric of each row; `overall` is the paper's own score."""
    setting, figures = tables.runs.setting, tables.figures[[*COLUMNS]]
    common = {"paper": tables.paper.name, "budget": setting.budget, "source": setting.source}
    common |= {"encoder": setting.encoder, "overrides": ", ".join(setting.changed)}
    return figures.assign(**common)[[*common, *figures]]
