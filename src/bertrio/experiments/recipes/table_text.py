"""A paper's tables on the terminal, in Markdown and as CSV."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from bertrio.core.console import output_console, print_table
from bertrio.core.files import write_csv, write_text
from bertrio.experiments.recipes.tables import CONVENTIONS, FIRSTS, PaperTables
from bertrio.experiments.runs import Runs, firsts_of

FOLDER = "recipes/tables"
MISSING = "-"
ODD, ALONE = "*", "°"  # marks of cells that a note below the table explains
NAMES = {metric: name for name, metric in CONVENTIONS.items()}
LEGEND = (
    "± is the standard deviation over the seeds of a row. In brackets after a score: its 95 % interval over rows, for "
    "a row with a single seed; after a difference: its 95 % interval by the paired test over rows and seeds. "
    f"{ALONE}: over rows alone, for a side has a single seed: what seeds change is not in it."
)


def to_markdown(frame: pd.DataFrame, words: int = 1) -> str:
    """Return a frame of texts in Markdown; the first `words` columns are set left, the others right."""
    escaped = frame.map(lambda cell: cell.replace("|", "\\|"))
    sides = ["left"] * words + ["right"] * (len(frame.columns) - words)
    return escaped.to_markdown(index=False, disable_numparse=True, colalign=sides)


def signed(value: float, low: float, high: float) -> str:
    """Return a difference with its interval, as in +0.012 [-0.003, +0.027]."""
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def show_tables(tables: PaperTables, console: Console | None = None) -> None:
    """Print the tables to standard output; of a table without measured rows, the command that measures it."""
    console = console or output_console()
    console.print(Text(_title(tables)), style="bold")
    for line in head(tables):
        console.print(Text(line))
    for name, split, part in tables.parts():
        console.print(Text(f"\n{name}, {split}: {tables.paper.tables[name].title}"), style="bold")
        if reason := _nothing_measured(name, split, part, tables):
            console.print(Text(reason), soft_wrap=True)  # its command is one line
            continue
        for title, table in sheets(name, split, part, tables).items():
            print_table(table, title, console)
        for note in notes(name, split, part, tables):
            console.print(Text(note))


def _nothing_measured(name: str, split: str, part: pd.DataFrame, tables: PaperTables) -> str:
    """Say why no row of a table is measured; empty if one is, or if none can be."""
    if part["literature"].all() or part["measured"].notna().any():
        return ""
    if part["seeds"].any():
        return f"Nothing of this table is measured: the runs have other metrics, or no labels of {split}."
    command = f"bertrio recipes run {tables.paper.name}-{name} {tables.runs.setting.to_run}".rstrip()
    return f"Nothing of this table is measured yet: {command}"


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
    write_text(path, markdown(tables, pictures))
    write_csv(frame(tables), path.with_suffix(".csv"))
    return [path, path.with_suffix(".csv"), *[one for paths in pictures.values() for one in paths]]


def markdown(tables: PaperTables, pictures: Mapping[str, Sequence[Path]] | None = None) -> str:
    """Return the tables in Markdown, with the pictures of each table, in a folder beside it, below it."""
    blocks = [f"# {_title(tables)}", *head(tables)]
    for name, split, part in tables.parts():
        blocks.append(f"## {name}, {split}: {tables.paper.tables[name].title}")
        for title, table in sheets(name, split, part, tables).items():
            blocks += [f"**{title}**", to_markdown(table)]
        blocks += notes(name, split, part, tables)
        if pictures and split == "dev":
            blocks += [f"![{name}]({path.parent.name}/{path.name})" for path in pictures.get(name, ())]
    return "\n\n".join(blocks) + "\n"


def head(tables: PaperTables) -> Iterator[str]:
    """Yield what readers of any of the tables must know, one or two sentences a line."""
    if not tables.paper.own:
        sizes = _sizes([tables.paper.data])
        data = f"its own data ({sizes})" if sizes else "its own data"
        yield f"Reported: by the paper, of bert-base-uncased on {data}, one run a row."
    runs, setting = tables.runs, tables.runs.setting
    if not runs.all:
        asked = f" with {setting.flags}" if setting.flags else ""
        command = f"bertrio recipes run {tables.paper.name} {setting.to_run}".rstrip()
        yield f"Measured: nothing yet{asked}; {command} measures all rows."
        return
    sizes, seeds = _sizes([run.rows for run in runs.all]), _span([len(row) for row in runs.by_row.values()])
    yield f"Measured: {setting.title} ({tables.budget}; {sizes}); seeds of a row: {seeds}."
    yield "Compare rows within a column; across columns, budget, data and encoder may differ as well."
    ways = Counter(_way(run.precision, run.threads, run.device) for run in runs.all).most_common()
    yield (
        f"Computed in {', '.join(f'{way} ({count} of {len(runs.all)} runs)' for way, count in ways)}. Compare seconds "
        "only between runs that were computed in the same way on an idle machine."
    )
    yield LEGEND
    yield from left_out(runs)


def left_out(runs: Runs) -> Iterator[str]:
    """Yield how many runs have other overrides, if any have."""
    if runs.left_out:
        yield f"Left out are runs with other overrides (-S), {runs.left_out} of them; name these with -S to see them."


def _way(precision: str, threads: int | None, device: str | None) -> str:
    if precision == "auto" or not threads:
        return "ways not recorded"
    on_cpu = device is None or device.startswith("cpu")
    return f"{precision} on {f'CPU, threads: {threads}' if on_cpu else device}"


def sheets(name: str, split: str, part: pd.DataFrame, tables: PaperTables) -> dict[str, pd.DataFrame]:
    """Return tables of text by title: scores, overall scores, and differences to one row."""
    lines, rows = list(part.itertuples()), part.drop_duplicates("row").set_index("row")
    text = part.assign(
        paper=[_figure(line.reported) + ODD * line.odd for line in lines],
        measured=[_measured(line) for line in lines],
        minus=[_difference(line) for line in lines],
    ).pivot(index="row", columns="metric", values=["paper", "measured", "minus"])
    found = _scores(rows, text, set(part.dropna(subset="measured")["row"]), tables)
    if split == "dev":
        compared = rows["compared"].any()
        minus = f"Measured, minus {tables.against[name]}; seconds" if compared else "Seconds"
        costs: dict[str, Any] = {"row": rows.index}
        if compared:
            costs |= {NAMES.get(metric, metric): text["minus", metric] for metric in tables.metrics}
        costs["seconds"] = [f"{row.seconds:.0f}" if row.seeds else _missing(row) for row in rows.itertuples()]
        costs["MB"] = [f"{row.peak_memory_mb:,.0f}" if row.seeds else _missing(row) for row in rows.itertuples()]
        if rows["minutes"].notna().any():
            costs["paper: minutes"] = ["" if pd.isna(minutes) else f"{minutes:g}" for minutes in rows["minutes"]]
        found[f"{minus} and peak memory of training"] = costs
    return {title: pd.DataFrame(cells, index=rows.index) for title, cells in found.items()}


def _scores(
    rows: pd.DataFrame, text: pd.DataFrame, measured: Collection[str], tables: PaperTables
) -> dict[str, dict[str, Any]]:
    """The columns of each table of scores: a paper's figures beside the measured ones, or these alone."""
    firsts = tables.firsts
    first = {
        "row": [row if run == row else f"{row} (the run of {run})" for row, run in rows["run_as"].items()],
        "seeds": [str(row.seeds) if row.Index in measured else _missing(row) for row in rows.itertuples()],
    }
    if tables.paper.own:
        names = {metric: f"{metric} {firsts[metric]}" if metric in firsts else metric for metric in tables.metrics}
        cells = {name: text["measured", metric] for metric, name in names.items()}
        return {"The first metric of each task, and both overall scores": first | cells}
    tasks, overalls = (
        {f"{name}: {kind}": text[kind, metric] for metric, name in names.items() for kind in ("paper", "measured")}
        for names in ({task: task for task in FIRSTS}, NAMES)
    )
    printed = {"as printed": text["paper", "overall"]}
    return {
        "Accuracy of sst and qqp, Pearson's r of sts": first | tasks,
        "Overall: as the paper prints it, and by both conventions": first | printed | overalls,
    }


def _figure(value: float | None) -> str:
    """A reported figure; blank where the paper gives none."""
    return "" if pd.isna(value) else f"{value:.3f}"


def _missing(line: Any) -> str:
    """The cell of a figure that is not measured; blank where it can't be."""
    return "" if line.literature else MISSING


def _measured(line: Any) -> str:
    if pd.isna(line.measured):
        return _missing(line)
    spread = "" if pd.isna(line.deviation) else f" ±{line.deviation:.3f}"
    interval = "" if pd.isna(line.low) else f" [{line.low:.3f}, {line.high:.3f}]"
    return f"{line.measured:.3f}{spread}{interval}"


def _difference(line: Any) -> str:
    if pd.isna(line.difference):
        return MISSING * line.compared
    return signed(line.difference, line.difference_low, line.difference_high) + ALONE * line.rows_alone


def notes(name: str, split: str, part: pd.DataFrame, tables: PaperTables) -> list[str]:
    """Return how much of a part is measured, what is odd in it, and what could not be compared."""
    rows = part[~part["literature"]]
    sentences = [f"{rows.dropna(subset='measured')['row'].nunique()} of {rows['row'].nunique()} rows measured."]
    firsts = {row: [firsts_of(run) for run in tables.runs.of(run)] for row, run in zip(rows["row"], rows["run_as"])}
    others = [row for row, found in firsts.items() if any(one != FIRSTS for one in found)]
    if tables.paper.own and len({frozenset(one) for found in firsts.values() for one in found}) > 1:
        sentences.append("Not all runs have the same tasks; overall scores are over those that a run has.")
    if others and not tables.paper.own:
        sentences.append(
            f"Left out of {', '.join(others)}: figures by other metrics, or over other tasks, than the paper's."
        )
    reported = part.pivot(index="row", columns="metric", values="reported")
    for row in part[part["odd"]]["row"]:
        printed, raw, normalized = reported.loc[row, ["overall", "overall_mean", "overall_normalized"]]
        sentences.append(
            f"{ODD} {row}: the paper's {printed:.3f} does not follow from its figures, which give {raw:.4f} raw and "
            f"{normalized:.4f} normalized."
        )
    return [
        " ".join(sentences),
        *[f"Not compared: {note}." for note in tables.notes[name] if split == "dev"],
    ]


def frame(tables: PaperTables) -> pd.DataFrame:
    """Return all figures, a line for each metric of each row; `overall` is the paper's own score."""
    setting, figures = tables.runs.setting, tables.figures.loc[:, :"peak_memory_mb"]
    common = {"paper": tables.paper.name, "budget": setting.budget, "source": setting.source}
    common |= {"encoder": setting.encoder, "overrides": ", ".join(setting.changed)}
    return figures.assign(**common)[[*common, *figures]]


def _title(tables: PaperTables) -> str:
    return f"{tables.paper.name}: {tables.paper.title}" + ("" if tables.paper.own else ", reported beside measured")


def _sizes(runs: Sequence[Mapping[str, Mapping[str, int]]]) -> str:
    """Rows by task, as in sst 8,544 train and 1,101 dev rows, from the least to the most of several runs; a size that
    is not known is left out."""
    texts = []
    for task in dict.fromkeys(task for rows in runs for task in rows):
        found = {
            split: [rows[task][split] for rows in runs if split in rows.get(task, {})] for split in ("train", "dev")
        }
        if known := [f"{_span(counts)} {split}" for split, counts in found.items() if counts]:
            texts.append(f"{task} {' and '.join(known)}")
    return "; ".join(texts) + (" rows" if texts else "")


def _span(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
