"""A paper's tables on the terminal, in Markdown and as CSV."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.text import Text

from bertrio.core.console import output_console, print_table
from bertrio.core.files import write_csv, write_text
from bertrio.experiments.recipes.rows import Paper
from bertrio.experiments.recipes.tables import CONVENTIONS, FIRSTS, Line, PaperTables, Part
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
    for part in tables.parts:
        console.print(Text(f"\n{_part_title(part)}"), style="bold")
        if reason := _nothing_measured(part, tables):
            console.print(Text(reason), soft_wrap=True)  # its command is one line
            continue
        for title, table in sheets(part, tables).items():
            print_table(table, title, console)
        for note in notes(part, tables):
            console.print(Text(note))


def _nothing_measured(part: Part, tables: PaperTables) -> str:
    """Say why no row of a table is measured; empty if one is, or if none can be."""
    runnable = [line for line in part.lines if not line.row.literature]
    if not runnable or any(line.scores for line in runnable):
        return ""
    if any(line.runs for line in runnable):
        return f"Nothing of this table is measured: the runs have other metrics, or no labels of {part.split}."
    command = f"bertrio recipes run {tables.paper.name}-{part.table.name} {tables.runs.setting.to_run}".rstrip()
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
    for part in tables.parts:
        blocks.append(f"## {_part_title(part)}")
        for title, table in sheets(part, tables).items():
            blocks += [f"**{title}**", to_markdown(table)]
        blocks += notes(part, tables)
        if pictures and part.split == "dev":
            blocks += [
                f"![{part.table.name}]({path.parent.name}/{path.name})" for path in pictures.get(part.table.name, ())
            ]
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


def sheets(part: Part, tables: PaperTables) -> dict[str, pd.DataFrame]:
    """Return tables of text by title: scores, overall scores, and differences to one row."""
    paper, firsts = tables.paper, tables.firsts
    if paper.own:
        names = {metric: f"{metric} {firsts[metric]}" if metric in firsts else metric for metric in tables.metrics}
        columns = {"The first metric of each task, and both overall scores": names}
    else:
        columns = {
            "Accuracy of sst and qqp, Pearson's r of sts": {task: task for task in FIRSTS},
            "Overall: as the paper prints it, and by both conventions": NAMES,
        }
    rows = {title: [_score_cells(line, names, paper) for line in part.lines] for title, names in columns.items()}
    if part.split == "dev":
        against = part.against.run_as if part.against else None
        others = [line for line in part.lines if line.row.run_as != against and not line.row.literature]
        minus = f"Measured, minus {part.against.name}; seconds" if part.against and others else "Seconds"
        rows[f"{minus} and peak memory of training"] = [
            _difference_cells(line, tables.metrics if others else (), line in others) for line in part.lines
        ]
    return {title: pd.DataFrame(cells).fillna("") for title, cells in rows.items()}


def _score_cells(line: Line, names: Mapping[str, str], paper: Paper) -> dict[str, str]:
    """A row's measured figures and, of a paper's row, two columns for each metric: the reported figure and that."""
    name = f"{line.row.name} (the run of {line.row.same_as})" if line.row.same_as else line.row.name
    cells = {"row": name, "seeds": str(len(line.runs)) if line.scores else _missing(line)}
    if names is NAMES:
        cells["as printed"] = _figure(line.reported.get("overall")) + ODD * (not line.follows(paper.overall))
    for metric, name in names.items():
        if not paper.own:
            cells[f"{name}: paper"] = _figure(line.reported.get(metric))
        cells[name if paper.own else f"{name}: measured"] = _measured(line, metric)
    return cells


def _difference_cells(line: Line, metrics: Sequence[str], compared: bool) -> dict[str, str]:
    """A row's differences, blank unless it is compared, what it costs, and the minutes that a paper reports."""
    cells = {"row": line.row.name}
    for metric in metrics:
        difference = line.differences.get(metric)
        cells[NAMES.get(metric, metric)] = MISSING if compared else ""
        if difference:
            text = signed(difference.difference, difference.low, difference.high)
            cells[NAMES.get(metric, metric)] = text + ALONE * difference.rows_alone
    cells["seconds"] = _missing(line) if line.seconds is None else f"{line.seconds:.0f}"
    cells["MB"] = _missing(line) if line.peak_memory_mb is None else f"{line.peak_memory_mb:,.0f}"
    if "minutes" in line.reported:
        cells["paper: minutes"] = f"{line.reported['minutes']:g}"
    return cells


def notes(part: Part, tables: PaperTables) -> list[str]:
    """Return how much of a part is measured, what is odd in it, and what could not be compared."""
    runnable = [line for line in part.lines if not line.row.literature]
    sentences = [f"{sum(bool(line.scores) for line in runnable)} of {len(runnable)} rows measured."]
    firsts = {line.row.name: [firsts_of(run) for run in line.runs] for line in part.lines}
    others = [name for name, found in firsts.items() if any(one != FIRSTS for one in found)]
    if tables.paper.own and len({frozenset(one) for found in firsts.values() for one in found}) > 1:
        sentences.append("Not all runs have the same tasks; overall scores are over those that a run has.")
    if others and not tables.paper.own:
        sentences.append(
            f"Left out of {', '.join(others)}: figures by other metrics, or over other tasks, than the paper's."
        )
    sentences += [
        f"{ODD} {line.row.name}: the paper's {line.reported['overall']:.3f} does not follow from its figures, which "
        f"give {line.reported['overall_mean']:.4f} raw and {line.reported['overall_normalized']:.4f} normalized."
        for line in part.lines
        if not line.follows(tables.paper.overall)
    ]
    return [" ".join(sentences), *[f"Not compared: {note}." for note in part.notes]]


def frame(tables: PaperTables) -> pd.DataFrame:
    """Return all figures, a line for each metric of each row; `overall` is the paper's own score."""
    setting = tables.runs.setting
    common = {"paper": tables.paper.name, "budget": setting.budget, "source": setting.source}
    common |= {"encoder": setting.encoder, "overrides": ", ".join(setting.changed)}
    return pd.DataFrame(
        common | record
        for part in tables.parts
        for line in part.lines
        for record in _records(line, part, tables.metrics)
    )


def _records(line: Line, part: Part, metrics: Sequence[str]) -> Iterator[dict[str, object]]:
    for metric in (*metrics, "overall"):
        score, difference = line.scores.get(metric), line.differences.get(metric)
        yield {
            "table": part.table.name,
            "split": part.split,
            "row": line.row.name,
            "run_as": line.row.run_as,
            "title": line.row.title,
            "seeds": len(line.runs),
            "metric": metric,
            "reported": line.reported.get(metric),
            **(vars(score) if score else dict.fromkeys(("measured", "deviation", "low", "high"))),
            "against": part.against.name if part.against and difference else None,
            "difference": difference.difference if difference else None,
            "difference_low": difference.low if difference else None,
            "difference_high": difference.high if difference else None,
            "p": difference.p if difference else None,
            "seconds": line.seconds,
            "peak_memory_mb": line.peak_memory_mb,
        }


def _title(tables: PaperTables) -> str:
    return f"{tables.paper.name}: {tables.paper.title}" + ("" if tables.paper.own else ", reported beside measured")


def _part_title(part: Part) -> str:
    return f"{part.table.name}, {part.split}: {part.table.title}"


def _figure(value: float | None) -> str:
    """A reported figure; blank where the paper gives none."""
    return "" if value is None else f"{value:.3f}"


def _missing(line: Line) -> str:
    """The cell of a figure that is not measured; blank where it can't be."""
    return "" if line.row.literature else MISSING


def _measured(line: Line, metric: str) -> str:
    if (score := line.scores.get(metric)) is None:
        return _missing(line)
    spread = f" ±{score.deviation:.3f}" if score.deviation >= 0 else ""
    interval = f" [{score.low:.3f}, {score.high:.3f}]" if score.low <= score.high else ""
    return f"{score.measured:.3f}{spread}{interval}"


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
