"""A paper's tables as text: on the terminal, in Markdown and as CSV."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

import pandas as pd
from rich.console import Console
from rich.text import Text

from bertrio.core.files import write_csv, write_text
from bertrio.experiments.cells import ABSENT
from bertrio.experiments.paired import firsts_of
from bertrio.experiments.recipes.measured import OVERALL, Measured
from bertrio.experiments.recipes.tables import CONVENTIONS, FIRSTS, Line, PaperTables, Part
from bertrio.experiments.runs import Runs
from bertrio.experiments.sheets import Sheet, console_for_sheets, signed

FOLDER = "recipes/tables"
ODD, ALONE = "*", "°"  # marks of cells that a line below the table explains


def show_tables(tables: PaperTables, console: Console | None = None) -> None:
    """Prints the tables to standard output; of those without any measured row, only what would measure them."""
    console = console or console_for_sheets()
    console.print(Text(_title(tables)), style="bold")
    _say([*head(tables)], console)
    for part in tables.parts:
        console.print(Text(f"\n{_part_title(part)}"), style="bold")
        if nothing := _nothing_measured(part, tables):
            console.print(Text(nothing), soft_wrap=True)  # its command is one line
            continue
        for sheet in sheets(part, tables.paper.overall, tables.paper.own):
            sheet.show(console)
        _say(notes(part, tables.paper.overall), console)


def _nothing_measured(part: Part, tables: PaperTables) -> str:
    """What to say of a table that has rows to measure, and none that was measured; nothing of any other."""
    runnable = [line for line in part.lines if not line.row.literature]
    if not runnable or any(line.scores for line in runnable):
        return ""
    if _left_out(part):
        return "Nothing of this table stands beside the paper's figures: the runs have other metrics."
    if any(line.runs for line in runnable):
        return f"Nothing of this table is measured: the runs had no labels of {part.split}."
    command = f"bertrio recipes run {tables.paper.name}-{part.table.name} {tables.runs.setting.to_run}".rstrip()
    return f"Nothing of this table is measured yet: {command}"


def _left_out(part: Part) -> list[str]:
    """Rows of a paper with runs that are measured otherwise than the paper measures."""
    if part.firsts is not FIRSTS:
        return []
    return [line.row.name for line in part.lines if any(firsts_of(run) != FIRSTS for run in line.runs)]


def write_tables(tables: PaperTables, folder: str | Path = FOLDER, plots: bool = False) -> list[Path]:
    """Writes the tables as Markdown and CSV and, with `plots`, the pictures that the Markdown then shows.

    The names of the files hold paper, budget, source and encoder, so that those of one setting never replace another's.

    Returns:
        The files, the Markdown first.
    """
    path = Path(folder) / f"{_stem(tables)}.md"
    drawn: Mapping[str, Sequence[Path]] = {}
    if plots:
        from bertrio.experiments.recipes.table_plots import draw_tables

        drawn = draw_tables(tables, path.with_suffix(""))
    write_text(path, markdown(tables, {name: [_relative(one, path) for one in own] for name, own in drawn.items()}))
    write_csv(frame(tables), path.with_suffix(".csv"))
    return [path, path.with_suffix(".csv"), *[one for own in drawn.values() for one in own]]


def markdown(tables: PaperTables, pictures: Mapping[str, Sequence[str]] | None = None) -> str:
    """The tables in Markdown, with the pictures of each table below it."""
    blocks = [f"# {_title(tables)}", *head(tables)]
    for part in tables.parts:
        blocks.append(f"## {_part_title(part)}")
        blocks += [sheet.markdown().rstrip() for sheet in sheets(part, tables.paper.overall, tables.paper.own)]
        blocks += notes(part, tables.paper.overall)
        if pictures and part.split == "dev":
            blocks += [f"![{part.table.name}]({path})" for path in pictures.get(part.table.name, ())]
    return "\n\n".join(blocks) + "\n"


def head(tables: PaperTables) -> Iterator[str]:
    """What must be known to read any of the tables, a sentence or two a line."""
    if not tables.paper.own:
        sizes = _sizes(tables.paper.data)
        own = f"its own data ({sizes})" if sizes else "its own data"
        yield f"Reported: by the paper, of bert-base-uncased on {own}, one run a row."
    runs, setting = tables.runs, tables.runs.setting
    if not runs.all:
        asked = f" with {setting.flags}" if setting.flags else ""
        command = f"bertrio recipes run {tables.paper.name} {setting.to_run}".rstrip()
        yield f"Measured: nothing yet{asked}; {command} measures all rows."
        return
    title = f" ({tables.budget})" if tables.budget else ""
    changed, seeds = ", ".join(setting.changed), _span([len(own) for own in runs.by_row.values()])
    yield (
        f"Measured: budget {setting.budget}{title}, source {setting.source} ({_sizes(_ranges(runs))}), encoder "
        f"{setting.encoder}, {seeds} {'seed' if seeds == '1' else 'seeds'} a row"
        + (f", with {changed} in place of what the rows say." if changed else ".")
    )
    yield "Compare rows within a column; across columns, budget, data and encoder may differ as well."
    yield _computed(runs)
    if runs.left_out:
        yield f"Left out are runs with other overrides (-S), {runs.left_out} of them; name these with -S to see them."


def _computed(runs: Runs) -> str:
    """How the runs were computed, which their seconds depend on more than on the rows."""
    ways = Counter(_way(run) for run in runs.all)
    if len(ways) == 1 and "" not in ways:
        return f"Computed in {next(iter(ways))}. Seconds are of training, beside whatever else the machine did."
    told = ", ".join(f"{way or 'ways not recorded'} ({_numbered(count, 'run')})" for way, count in ways.most_common())
    return f"Computed in {told}: seconds compare no rows that were run in different ways, or on a busy machine."


def _way(run: Measured) -> str:
    """Precision and device of a run, or threads on a CPU; empty if they were not recorded."""
    if run.precision == "auto" or not run.threads:
        return ""
    on_cpu = run.device is None or run.device.startswith("cpu")
    return f"{run.precision} on {_numbered(run.threads, 'thread') if on_cpu else run.device}"


def _numbered(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def sheets(part: Part, convention: str | None, own: bool = False) -> list[Sheet]:
    """A part's scores, overall scores, and differences to one row.

    Args:
        part: the part.
        convention: how the paper makes its overall score, if it has one.
        own: the rows are our own, and no paper reports them.
    """
    made = [_measured_scores(part)] if own else [_scores(part), _overalls(part, convention)]
    return [*made, _differences(part)] if part.split == "dev" else made


def _measured_scores(part: Part) -> Sheet:
    rows = [
        [_name(line), str(len(line.runs)) if line.scores else _missing(line)]
        + [_measured(line, metric) for metric in part.metrics]
        for line in part.lines
    ]
    header = ["row", "seeds", *[f"{task} {metric}" for task, metric in part.firsts.items()], *OVERALL]
    return Sheet(header, rows, "The first metric of each task, and both overall scores", groups=[1] * (len(header) - 1))


def _scores(part: Part) -> Sheet:
    columns = [f"{task}: {side}" for task in part.firsts for side in ("paper", "measured")]
    rows = [
        [_name(line), str(len(line.runs)) if line.scores else _missing(line)]
        + [cell for task in part.firsts for cell in (_figure(line.reported.get(task)), _measured(line, task))]
        for line in part.lines
    ]
    groups = [1, *[2] * len(part.firsts)]
    return Sheet(["row", "seeds", *columns], rows, "Accuracy of sst and qqp, Pearson's r of sts", groups=groups)


def _overalls(part: Part, convention: str | None) -> Sheet:
    names = {metric: name for name, metric in CONVENTIONS.items()}
    columns = [f"{names[metric]}: {side}" for metric in OVERALL for side in ("paper", "measured")]
    rows = []
    for line in part.lines:
        mark = "" if line.follows(convention) else ODD
        row = [line.row.name, _figure(line.reported.get("overall")) + mark]
        row += [cell for metric in OVERALL for cell in (_figure(line.overalls.get(metric)), _measured(line, metric))]
        rows.append(row)
    title = "Overall: as the paper prints it, and by both conventions"
    return Sheet(["row", "as printed", *columns], rows, title, groups=[1, *[2] * len(OVERALL)])


def _differences(part: Part) -> Sheet:
    minutes = any("minutes" in line.reported for line in part.lines)
    base = part.against.run_as if part.against else None
    others = [line for line in part.lines if line.row.run_as != base and not line.row.literature]
    metrics = part.metrics if others else ()
    rows = []
    for line in part.lines:
        row = [line.row.name, *[_difference(line, metric, line in others) for metric in metrics]]
        row += [_missing(line)] * 2 if not line.runs else [f"{seconds(line):.0f}", f"{peak_memory(line):,.0f}"]
        if minutes:
            row.append(f"{line.reported['minutes']:g}" if "minutes" in line.reported else "")
        rows.append(row)
    names = {metric: name for name, metric in CONVENTIONS.items()}
    cost = ["seconds", "MB", *(["paper: minutes"] if minutes else [])]
    header = ["row", *[names.get(metric, metric) for metric in metrics], *cost]
    minus = f"Measured, minus {part.against.name}; seconds" if others else "Seconds"
    groups = [*[1] * len(metrics), len(cost)]
    return Sheet(header, rows, f"{minus} and peak memory of training", groups=groups)


def notes(part: Part, convention: str | None) -> list[str]:
    """What the cells of a part mean, and what is missing."""
    runnable = [line for line in part.lines if not line.row.literature]
    told = [f"{sum(bool(line.scores) for line in runnable)} of {len(runnable)} rows measured."]
    scores = [score for line in part.lines for score in line.scores.values()]
    if any(score.deviation is not None for score in scores):
        told.append("± is the standard deviation over the seeds of a row.")
    if any(score.interval for score in scores):
        told.append("In brackets after a score: its 95 % interval over rows, for a row with a single seed.")
    differences = [difference for line in part.lines for difference in line.differences.values()]
    if differences:
        told.append("In brackets after a difference: its 95 % interval by the paired test over rows and seeds.")
    if any(difference.rows_alone for difference in differences):
        told.append(f"{ALONE}: over rows alone, for a side has a single seed: what seeds change is not in it.")
    if part.firsts is not FIRSTS and len({frozenset(firsts_of(run)) for line in part.lines for run in line.runs}) > 1:
        told.append("Not all runs have the same tasks; overall scores are over those that a run has.")
    if other := _left_out(part):
        told.append(f"Left out of {', '.join(other)}: figures by other metrics, or over other tasks, than the paper's.")
    told += [
        f"{ODD} {line.row.name}: the paper's {line.reported['overall']:.3f} does not follow from its figures, which "
        f"give {line.overalls['overall_mean']:.4f} raw and {line.overalls['overall_normalized']:.4f} normalized."
        for line in part.lines
        if not line.follows(convention)
    ]
    return [" ".join(told), *[f"Not compared: {note}." for note in part.notes]]


def frame(tables: PaperTables) -> pd.DataFrame:
    """All figures, a line for each metric of each row; `overall` is the paper's own score."""
    setting = tables.runs.setting
    common = {"paper": tables.paper.name, "budget": setting.budget, "source": setting.source}
    common |= {"encoder": setting.encoder, "overrides": ", ".join(setting.changed)}
    records = [common | record for part in tables.parts for line in part.lines for record in _records(line, part)]
    return pd.DataFrame(records)


def _records(line: Line, part: Part) -> Iterator[dict[str, object]]:
    about = {"table": part.table.name, "split": part.split, "row": line.row.name, "run_as": line.row.run_as}
    about |= {"title": line.row.title, "seeds": len(line.runs)}
    cost = {
        "seconds": seconds(line) if line.runs else None,
        "peak_memory_mb": peak_memory(line) if line.runs else None,
    }
    for metric in (*part.metrics, "overall"):
        score, difference = line.scores.get(metric), line.differences.get(metric)
        interval = (score.interval if score else None) or (None, None)
        yield {
            **about,
            "metric": metric,
            "reported": {**line.reported, **line.overalls}.get(metric),
            "measured": score.value if score else None,
            "deviation": score.deviation if score else None,
            "low": interval[0],
            "high": interval[1],
            "against": part.against.name if difference else None,
            "difference": difference.difference if difference else None,
            "difference_low": difference.low if difference else None,
            "difference_high": difference.high if difference else None,
            "p": difference.p if difference else None,
            **cost,
        }


def seconds(line: Line) -> float:
    """Of training, the mean over seeds."""
    return mean(run.seconds for run in line.runs)


def peak_memory(line: Line) -> float:
    """In MB, the most of any seed."""
    return max(run.peak_memory_mb for run in line.runs)


def _title(tables: PaperTables) -> str:
    return f"{tables.paper.name}: {tables.paper.title}" + ("" if tables.paper.own else ", reported beside measured")


def _part_title(part: Part) -> str:
    return f"{part.table.name}, {part.split}: {part.table.title}"


def _stem(tables: PaperTables) -> str:
    setting = tables.runs.setting
    parts = [tables.paper.name, setting.budget, setting.source, setting.encoder]
    parts += setting.changed
    return re.sub(r"[^\w.-]+", "-", "-".join(part for part in parts if part))


def _relative(path: Path, beside: Path) -> str:
    return path.relative_to(beside.parent).as_posix()


def _say(lines: Sequence[str], console: Console) -> None:
    for line in lines:
        console.print(Text(line))


def _name(line: Line) -> str:
    return f"{line.row.name} (the run of {line.row.same_as})" if line.row.same_as else line.row.name


def _figure(value: float | None) -> str:
    """A reported figure; blank where the paper gives none."""
    return "" if value is None else f"{value:.3f}"


def _missing(line: Line) -> str:
    """What stands for a measured figure that there is not: nothing where there can't be one."""
    return "" if line.row.literature else ABSENT


def _measured(line: Line, metric: str) -> str:
    score = line.scores.get(metric)
    if score is None:
        return _missing(line)
    if score.deviation is not None:
        return f"{score.value:.3f} ±{score.deviation:.3f}"
    return (
        f"{score.value:.3f} [{score.interval[0]:.3f}, {score.interval[1]:.3f}]"
        if score.interval
        else f"{score.value:.3f}"
    )


def _difference(line: Line, metric: str, wanted: bool) -> str:
    """A difference; blank where there can be none, such as of the row that others are compared with."""
    difference = line.differences.get(metric)
    if difference is None:
        return ABSENT if wanted else ""
    cell = signed(difference.difference, difference.low, difference.high)
    return cell + (ALONE if difference.rows_alone else "")


def _sizes(rows: Mapping[str, Mapping[str, object]]) -> str:
    """Rows by task, as in sst 8,544 train and 1,101 dev rows; a size that is not known is left out."""
    told = []
    for task, sizes in rows.items():
        known = [f"{_count(sizes[split])} {split}" for split in ("train", "dev") if split in sizes]
        if known:
            told.append(f"{task} {' and '.join(known)}")
    return "; ".join(told) + (" rows" if told else "")


def _count(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _ranges(runs: Runs) -> dict[str, dict[str, str]]:
    """How many rows the runs had, by task and split: one number, or the least and the most."""
    tasks = dict.fromkeys(task for run in runs.all for task in run.rows)
    return {
        task: {
            split: _span([run.rows[task][split] for run in runs.all if split in run.rows.get(task, {})])
            for split in ("train", "dev")
            if any(split in run.rows.get(task, {}) for run in runs.all)
        }
        for task in tasks
    }


def _span(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
