"""Pictures of a run, as PNG and as tables that DVC draws; the same predictions make the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bertrio.core.files import write_csv
from bertrio.core.tasks import Array, Task
from bertrio.evaluation.calibration import ece, reliability
from bertrio.evaluation.canvas import INK, LINES, MUTED, RED, colours_of, picture, titled
from bertrio.evaluation.metrics import LOWER_IS_BETTER, Scored

if TYPE_CHECKING:  # half a second to import, and whoever imports this module may draw nothing
    from matplotlib.axes import Axes

STROKES = {"solid": "-", "dashed": "--", "dotted": ":", "dash-dotted": "-."}
NUMBERS_UP_TO = 15  # classes whose confusion matrix can hold numbers that are read without a lens
MARKED_UP_TO = 30  # points of a line that are marked one by one
PANELS = 8  # members whose conflicts are drawn
PLOTTED = 5000  # rows in a table of scores for DVC: its page holds every row of every revision


def write_plots(
    frame: pd.DataFrame,
    tasks: Mapping[str, Task],
    folder: str | Path,
    histories: str | Path = "plots/history",
    conflicts: str | Path = "plots/conflicts",
    members: Sequence[str] | None = None,
    steps: str | Path = "plots/steps",
) -> None:
    """Writes what DVC draws, and the pictures, of the labelled dev rows and of training.

    Into `folder`: confusion/<task>.csv, reliability/<task>.csv, scores/<task>.csv, learning/loss/<task>.csv and
    learning/score/<task>.csv (training loss and first metric on dev, means over members), and pictures/ with
    confusion-<task>.png, reliability-<task>.png, scores-<task>.png, learning.png and conflicts.png. What there is no
    data for is left out; the folders are there all the same, as DVC expects.

    Args:
        frame: a prediction table.
        tasks: all tasks, by name.
        folder: the folder to write into.
        histories: holds <member>.csv, see `training.course.history_line`.
        conflicts: holds <member>.csv, see `training.finetune.write_conflicts`.
        members: whose files to read; None: all. DVC leaves behind the files of members that were dropped.
        steps: holds <member>.csv, see `training.trackers.Table`; where it has no rows, losses are those of epochs.
    """
    folder = Path(folder)
    for name in ("confusion", "reliability", "scores", "learning/loss", "learning/score", "pictures"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, task in tasks.items():
        rows = frame[(frame["task"] == name) & (frame["split"] == "dev") & frame["label"].notna()]
        if len(rows):
            (_plot_classes if task.target.discrete else _plot_scores)(rows, task, folder)
    training = _member_tables(histories, members)
    for name, task in tasks.items():
        for what, column in (("loss", f"train_loss_{name}"), ("score", f"dev_{name}_{task.target.metrics[0]}")):
            write_csv(_mean_curve(training, column, what), folder / "learning" / what / f"{name}.csv")
    if training:
        learning_picture(training, _member_tables(steps, members), tasks, folder / "pictures" / "learning.png")
    if measured := _member_tables(conflicts, members):
        conflicts_picture(measured, folder / "pictures" / "conflicts.png")


def _plot_classes(rows: pd.DataFrame, task: Task, folder: Path) -> None:
    scored = Scored.of(rows)
    name_of = task.target.name_of
    table = pd.DataFrame({"gold": map(name_of, scored.labels), "predicted": map(name_of, scored.predictions)})
    write_csv(table, folder / "confusion" / f"{task.name}.csv")
    confusion_picture(scored, task, folder / "pictures" / f"confusion-{task.name}.png")
    write_csv(reliability(scored), folder / "reliability" / f"{task.name}.csv")
    reliability_picture(scored, task.name, folder / "pictures" / f"reliability-{task.name}.png")


def _plot_scores(rows: pd.DataFrame, task: Task, folder: Path) -> None:
    scored = Scored.of(rows)
    table = pd.DataFrame({"id": rows["id"].to_list(), "gold": scored.labels, "predicted": scored.predictions})
    if len(table) > PLOTTED:
        table = table.iloc[np.sort(np.random.default_rng(0).permutation(len(table))[:PLOTTED])]
    write_csv(table, folder / "scores" / f"{task.name}.csv")
    limits = (task.target.low, task.target.high)
    scores_picture(scored, rows["id"].to_list(), limits, task.name, folder / "pictures" / f"scores-{task.name}.png")


def _mean_curve(training: Mapping[str, pd.DataFrame], column: str, name: str) -> pd.DataFrame:
    """[step, `name`]: the mean over members; one whose epochs end at other steps counts at those."""
    parts = [table.reindex(columns=["step", column]) for table in training.values()]
    rows = pd.concat(parts or [pd.DataFrame(columns=["step", column])]).dropna()
    return rows.rename(columns={column: name}).groupby("step", as_index=False).mean()


def confusion_picture(scored: Scored, task: Task, path: str | Path) -> None:
    """Draws the confusion matrix of a task with classes: the share of each gold class that got each prediction."""
    from matplotlib.colors import PowerNorm

    count = scored.probabilities.shape[1]
    labels, predictions = scored.labels.astype(int), scored.predictions.astype(int)
    counts = np.bincount(labels * count + predictions, minlength=count * count).reshape(count, count)
    of_class = counts.sum(axis=1)
    shares = np.where(of_class[:, None] > 0, counts / np.maximum(of_class, 1)[:, None], np.nan)
    few = count <= NUMBERS_UP_TO
    names = [_short(task.target.name_of(number), 14) for number in range(count)]
    side = float(np.clip((1.1 if task.target.labels else 0.62) * count, 2.4, 9.0))  # words take more room than numbers
    with picture(path, (side + (1.7 if few else 2.6), side + 1.5)) as figure:
        axes = figure.add_subplot()
        # shares of many classes are small: the root brings them out
        image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(1.0 if few else 0.5, 0, 1))
        if few:
            _numbers(axes, shares)
            axes.set_xticks(range(count), names)
            axes.set_yticks(range(count), [f"{gold}  (n = {n:,})" for gold, n in zip(names, of_class)])
        else:
            bar = figure.colorbar(image, ax=axes, shrink=0.85, pad=0.03, label="share of the gold class's rows")
            bar.outline.set_visible(False)
        axes.set_xticks(np.arange(1, count) - 0.5, minor=True)
        axes.set_yticks(np.arange(1, count) - 0.5, minor=True)
        axes.grid(False)
        axes.grid(which="minor", color="white", linewidth=1.5 if few else 0.3)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set_visible(False)
        axes.set(xlabel="predicted class", ylabel="gold class")
        under = f"{len(labels):,} dev rows, {scored.correct.mean():.1%} right; each line sums to 1"
        titled(figure, f"{task.name}: what classes are taken for", under)


def _numbers(axes: Axes, shares: Array) -> None:
    size = 11 if len(shares) <= 6 else 8
    for gold, predicted in np.argwhere(~np.isnan(shares)):
        share = shares[gold, predicted]
        ink = "white" if share > 0.55 else INK
        axes.text(predicted, gold, f"{share:.2f}", ha="center", va="center", color=ink, fontsize=size)


def reliability_picture(scored: Scored, task: str, path: str | Path) -> None:
    """Draws accuracy against confidence in bins of about as many rows each, and below it how confidence spreads."""
    table, confidence = reliability(scored), scored.confidence
    lowest, highest = np.floor(confidence.min() * 20) / 20, np.ceil(confidence.max() * 20) / 20
    lowest, highest = min(lowest, highest - 0.1), max(highest, lowest + 0.1)
    error = ece(confidence, scored.correct)
    with picture(path, (5.2, 5.6)) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        above.plot([lowest, highest], [lowest, highest], color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
        above.text(0.02, 0.97, "too modest", transform=above.transAxes, color=MUTED, style="italic", va="top")
        above.text(0.98, 0.03, "too sure", transform=above.transAxes, color=MUTED, style="italic", ha="right")
        ends = [table["accuracy"] - table["low"], table["high"] - table["accuracy"]]
        above.errorbar(
            table["confidence"], table["accuracy"], np.abs(ends), fmt="o", color=LINES[0], ecolor=LINES[0], elinewidth=1
        )
        above.set(ylim=(0, 1.03), yticks=np.arange(0, 1.1, 0.2), ylabel="accuracy, with 95 % interval")
        below.hist(confidence, bins=np.linspace(lowest, highest, 21), color="#9ecae1", edgecolor="white", linewidth=0.5)
        below.set(xlabel="confidence (probability of the predicted class)", ylabel="rows")
        room = 0.015 * (highest - lowest)
        below.set_xlim(lowest - room, highest + room)
        fewest, most = table["n"].min(), table["n"].max()
        size = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
        plural = "s" if len(table) > 1 else ""
        under = f"{len(confidence):,} dev rows in {len(table)} bin{plural} of {size}; calibration error {error:.3f}"
        titled(figure, f"{task}: is it as sure as it is right?", under)


def scores_picture(
    scored: Scored, ids: Sequence[str], limits: tuple[float, float], task: str, path: str | Path
) -> None:
    """Draws predicted against gold scores as density, and rings the row that is furthest off."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.ticker import LogLocator, MaxNLocator

    gold, predicted = scored.labels, scored.predictions
    worst = int(np.abs(gold - predicted).argmax())
    low, high = limits
    room = 0.04 * (high - low)
    with picture(path, (6.2, 5.6)) as figure:
        axes = figure.add_subplot()
        axes.plot(limits, limits, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
        cells = axes.hexbin(
            gold, predicted, gridsize=20, extent=(low, high, low, high), mincnt=1, cmap=_blues(), linewidths=0.2
        )
        most = int(cells.get_array().max())
        crowded = most >= 10  # on a plain scale a few crowded cells would leave all others pale
        cells.set_norm(LogNorm(1, most) if crowded else Normalize(1, max(most, 2)))
        bar = figure.colorbar(cells, ax=axes, shrink=0.85, pad=0.03, format="%d")
        bar.locator = LogLocator(subs=(1, 2, 5)) if crowded else MaxNLocator(integer=True)
        bar.update_ticks()
        bar.ax.minorticks_off()
        bar.set_label("rows in a cell")
        bar.outline.set_visible(False)
        ring = {"markersize": 13, "markeredgecolor": RED, "markeredgewidth": 2}
        axes.plot(gold[worst], predicted[worst], "o", color="none", **ring)
        told = f"○ worst row: {_short(ids[worst], 14)}, gold {gold[worst]:.2f}, predicted {predicted[worst]:.2f}"
        axes.set_title(told, color=RED, fontweight="bold")
        axes.set(xlim=(low - room, high + room), ylim=(low - room, high + room), aspect="equal")
        axes.set(xlabel="gold score", ylabel="predicted score")
        error = np.abs(gold - predicted)
        under = (
            f"{len(gold):,} dev rows; off by {error.mean():.2f} on average; on the dashed line a prediction is right"
        )
        titled(figure, f"{task}: predicted against gold", under)


def learning_picture(
    histories: Mapping[str, pd.DataFrame],
    steps: Mapping[str, pd.DataFrame],
    tasks: Mapping[str, Task],
    path: str | Path,
) -> None:
    """Draws for each task the losses and the first metric over the steps, a line a member.

    Losses of regularizers, which are of another size, get a column of their own where there are any.

    Args:
        histories: by member, a row an epoch: `train_loss_<task>`, `dev_<task>_<metric>` and so on.
        steps: by member, a row every few steps: `loss_<task>`; a member without has the losses of its epochs drawn.
        tasks: all tasks, by name.
        path: of the PNG.
    """
    losses = {member: _losses(steps.get(member, history)) for member, history in histories.items()}
    regularizers = {name: _regularizers(losses.values(), tasks, name) for name in tasks}
    columns = 3 if any(regularizers.values()) else 2
    with picture(path, (3.6 * columns, 2.1 * len(tasks) + 0.9)) as figure:
        grid = figure.subplots(len(tasks), columns, sharex=True, squeeze=False)
        for row, (name, task) in zip(grid, tasks.items()):
            metric = task.target.metrics[0]
            scores = [s for s in ("dev", "holdout", "train") if _has(histories.values(), f"{s}_{name}_{metric}")]
            row[0].set(title=f"{name}: training loss", ylabel="loss")
            row[1].set(title=f"{name}: {metric},{_key(scores)}", ylabel=metric)
            if columns == 3:
                found = regularizers[name]
                row[2].set(title=f"{name}:{_key(found)}", ylabel="regularizer's loss", visible=bool(found))
            for colour, member in zip(colours_of(len(histories)), histories):
                _line(row[0], losses[member], name, colour, "-", member)
                for split, style in zip(scores, STROKES.values()):
                    _line(row[1], histories[member], f"{split}_{name}_{metric}", colour, style)
                for of, style in zip(regularizers[name], STROKES.values()):
                    _line(row[2], losses[member], f"{of}_{name}", colour, style)
        for axes in grid[-1]:
            axes.set_xlabel("step")
        figure.align_ylabels(grid)
        under = "scores at the end of each epoch"
        if len(histories) > 1:
            under += "; a colour a member"
            handles, labels = grid[0][0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), fontsize=8)
        titled(figure, "Learning curves", under)


def conflicts_picture(conflicts: Mapping[str, pd.DataFrame], path: str | Path) -> None:
    """Draws the cosine of the tasks' gradients over the steps, a panel a member and a colour a pair of tasks.

    Faint points are steps, lines their running means; below 0 the tasks pull in opposite directions.
    """
    shown = list(conflicts.items())[:PANELS]
    pairs = list(dict.fromkeys(pair for _, table in shown for pair in _pairs(table)))
    colours = colours_of(len(pairs))
    reach = min(1.05, max(1.1 * float(table["cosine"].abs().max()) for _, table in shown) + 0.01)
    with picture(path, (7.6, max(2.6 if len(shown) > 1 else 3.2, 0.22 * len(pairs)) * len(shown) + 0.9)) as figure:
        panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (member, table) in zip(panels, shown):
            axes.axhspan(-1.1, 0, color=RED, alpha=0.05, linewidth=0)
            axes.axhline(0, color=MUTED, linewidth=1)
            for pair, of in table.groupby(_pairs(table), sort=False):
                of = of.sort_values("step", kind="stable")
                colour = colours[pairs.index(pair)]
                label = f"{pair}: {(of['cosine'] < 0).mean():.0%} of steps below 0"
                axes.scatter(of["step"], of["cosine"], s=4, color=colour, alpha=0.25, linewidths=0, rasterized=True)
                axes.plot(of["step"], _smooth(of["cosine"]), color=colour, linewidth=1.8, label=label)
            axes.set(ylim=(-reach, reach), ylabel="cosine")
            axes.set_title(member if len(conflicts) > 1 else "")
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
        panels[-1].set_xlabel("step")
        under = "cosine between two tasks' gradients of the encoder; in the red, what helps one hurts the other"
        left_out = f"; first {PANELS} of {len(conflicts)} members" if len(conflicts) > PANELS else ""
        titled(figure, "Do the tasks agree?", under + left_out)


def slices_picture(slices: pd.DataFrame, task: str, path: str | Path, metric: str = "score") -> None:
    """Draws a task's score with its 95 % interval on each slice of the rows, grouped by family.

    Slices whose interval lies wholly on the worse side of the value for all rows are red, on the better side blue.

    Args:
        slices: [family, slice, n, value, low, high], a row a slice, families in the order to draw them in. A family
            `all` gives the value for all rows; without one, the mean weighted by n stands for it.
        task: its name.
        path: of the PNG.
        metric: what `value` is.
    """
    known = slices[slices["value"].notna()]
    whole = known[known["family"] == "all"]
    middle = whole["value"].iloc[0] if len(whole) else np.average(known["value"], weights=known["n"].clip(lower=1))
    families = [(str(family), rows) for family, rows in known.groupby("family", sort=False) if family != "all"]
    lines = sum(len(rows) + 1.6 for _, rows in families)
    with picture(path, (7.2, 0.23 * lines + 1.5)) as figure:
        axes = figure.add_subplot()
        axes.axvline(middle, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
        place, names, heads = 0.0, {}, []
        across = axes.get_yaxis_transform()
        for family, rows in families:
            names[place] = _short(family, 40)
            heads.append(names[place])
            for row in rows.itertuples():
                place += 1
                names[place] = _short(str(row.slice), 40)
                below, above = (LINES[0], RED) if metric in LOWER_IS_BETTER else (RED, LINES[0])
                colour = below if row.high < middle else above if row.low > middle else INK
                axes.plot([row.low, row.high], [place, place], color=colour, linewidth=1.5, alpha=0.6)
                axes.plot(row.value, place, "o", color=colour, markersize=5)
                axes.text(1.1, place, f"{row.value:.3f}", transform=across, va="center", ha="right", color=colour)
                axes.text(1.22, place, f"{row.n:,}", transform=across, va="center", ha="right", color=MUTED)
            place += 1.6
        axes.text(1.1, 0, _short(metric, 12), transform=across, va="center", ha="right", color=MUTED)
        axes.text(1.22, 0, "rows", transform=across, va="center", ha="right", color=MUTED)
        axes.set(yticks=list(names), yticklabels=list(names.values()), ylim=(place - 0.4, -0.8), xlabel=metric)
        for label in axes.get_yticklabels():
            if label.get_text() in heads:
                label.set(fontweight="bold", color=INK)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        under = f"95 % intervals; dashed: all rows, {middle:.3f}; red: wholly worse, blue: wholly better"
        titled(figure, f"{task}: {metric} by slice", under, right=0.97)  # the columns reach beyond what it lays out


def _key(lines: Sequence[str]) -> str:
    """Which line is drawn how: ` dev (solid), train (dashed)`; a single one is named alone."""
    named = lines if len(lines) < 2 else [f"{line} ({stroke})" for line, stroke in zip(lines, STROKES)]
    return " " + ", ".join(named)


def _line(axes: Axes, table: pd.DataFrame, column: str, colour: Any, style: str, label: str | None = None) -> None:
    """A line over the steps: with its points while they are few, else faint, with its running mean on top."""
    of = table.reindex(columns=["step", column]).dropna()
    if len(of) > MARKED_UP_TO:
        axes.plot(of["step"], of[column], style, color=colour, alpha=0.25, linewidth=0.8)
        axes.plot(of["step"], _smooth(of[column]), style, color=colour, label=label)
    else:
        axes.plot(of["step"], of[column], style, marker="o", markersize=3, color=colour, label=label)


def _smooth(values: pd.Series) -> pd.Series:
    return values.rolling(max(1, len(values) // 20), center=True, min_periods=1).mean()


def _losses(table: pd.DataFrame) -> pd.DataFrame:
    """step and every loss, named by its task or by <regularizer>_<task>."""
    starts = ("loss_", "train_loss_")
    names = {name: name.removeprefix("train_").removeprefix("loss_") for name in table if name.startswith(starts)}
    return table[["step", *names]].rename(columns=names)


def _regularizers(losses: Iterable[pd.DataFrame], tasks: Mapping[str, Task], task: str) -> list[str]:
    """Those that have a loss for `task`, whose name may be the end of another task's."""
    longer = tuple(f"_{other}" for other in tasks if other.endswith(f"_{task}"))
    names = dict.fromkeys(name for table in losses for name in table.columns if name not in tasks)
    ends = [name for name in names if name.endswith(f"_{task}") and not name.endswith(longer)]
    return [name.removesuffix(f"_{task}") for name in ends]


def _has(tables: Iterable[pd.DataFrame], column: str) -> bool:
    return any(column in table for table in tables)


def _pairs(table: pd.DataFrame) -> pd.Series:
    return table["task_a"].astype(str) + " and " + table["task_b"].astype(str)


def _blues() -> Any:
    """Blues without the palest ones, so that a single row still shows on white."""
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("blues", colormaps["Blues"](np.linspace(0.32, 1, 64)))


def _short(text: str, most: int = 24) -> str:
    """`text` on one line, cut to `most` characters; a dollar sign would start a formula."""
    text = " ".join(text.split()).replace("$", r"\$")
    return text if len(text) <= most else text[: most - 1] + "…"


def _member_tables(folder: str | Path, members: Sequence[str] | None) -> dict[str, pd.DataFrame]:
    """The tables of members that have rows, in the order of the members."""
    found = {path.stem: path for path in sorted(Path(folder).glob("*.csv"))}
    tables = {name: pd.read_csv(found[name]) for name in (found if members is None else members) if name in found}
    return {name: table for name, table in tables.items() if len(table)}
