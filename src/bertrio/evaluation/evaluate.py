"""Evaluation of the ensemble: metrics with intervals, plots, submission files and a table on the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bertrio.core.console import output_console, print_table, say
from bertrio.core.errors import UserError
from bertrio.core.files import read_json, write_json
from bertrio.core.tasks import Task
from bertrio.evaluation.calibration import write_calibration
from bertrio.evaluation.intervals import intervals
from bertrio.evaluation.metrics import OVERALL, evaluate_predictions
from bertrio.evaluation.plots import write_plots
from bertrio.evaluation.predictions import read_predictions
from bertrio.evaluation.submission import write_submissions


def evaluate(
    members: Sequence[str],
    tasks: Mapping[str, Task],
    predictions: str | Path,
    metrics: str | Path,
    plots: str | Path,
    submission: bool,
) -> None:
    """Measure the ensemble's predictions, write metrics, plots and submission files, and say the main scores.

    Writes `evaluation.json` (what `evaluate_predictions` returns, `overall_tasks` that the overall scores cover,
    `intervals`, `best_epoch` by member, and `selected_on`), `scores.json` (see `main_scores`) and `calibration.json`
    (see `write_calibration`) into `metrics`, the files of `write_plots` into `plots`, and submission files into
    `predictions`/submission. Dev rows that the ensemble was chosen on are the split `selection` in the metrics;
    submission files hold all of dev.

    Args:
        members: names of the ensemble's members.
        tasks: all tasks, by name.
        predictions: a folder that holds ensemble.parquet, and members/<name>/summary.json of every member.
        metrics: the folder of the metrics.
        plots: a folder that holds history/<member>.csv.
        submission: whether to write the submission files; otherwise their folder is empty.

    Raises:
        UserError: if a file is missing or damaged, or the table holds an unknown task.
    """
    predictions, metrics = Path(predictions), Path(metrics)
    frame = read_predictions(predictions / "ensemble.parquet")
    result: dict[str, Any] = evaluate_predictions(frame, tasks)
    result |= {"overall_tasks": list(tasks), "intervals": intervals(frame, tasks)}
    result |= selection(members, predictions / "members")
    if "selection" in result:
        result["selected_on"]["ensemble"] = "selection"
    write_json(metrics / "evaluation.json", result)
    scores = main_scores(result)
    write_json(metrics / "scores.json", scores)
    write_calibration(frame, tasks, metrics / "calibration.json")
    write_plots(frame, tasks, plots, members)
    (predictions / "submission").mkdir(parents=True, exist_ok=True)
    write_submissions(frame if submission else frame.head(0), predictions / "submission", tasks)
    for split, values in scores.items():
        say(f"{split}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()))


def main_scores(evaluation: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the main metric of each task and overall_normalized, by split: the metrics that DVC shows."""
    return {
        split: {
            name: next(iter(value.values())) if isinstance(value, Mapping) else value
            for name, value in evaluation[split].items()
            if name != "overall_mean"
        }
        for split in ("dev", "test")
        if split in evaluation
    }


def selection(members: Sequence[str], folder: Path) -> dict[str, Any]:
    """Return how the members' epochs were chosen; readers of the metrics see if that used the rows measured.

    Returns:
        `{"best_epoch": {member: epoch}, "selected_on": {"rows": "dev", "by": "overall_normalized"}}`. Rows are `none`
        by `last`. Thresholds of multi-label tasks were chosen on the rows `thresholds`. Different values of members are
        joined by commas.
    """
    summaries = {name: read_result(folder / name / "summary.json") for name in members}
    choices = [summary["selected_on"] for summary in summaries.values()]
    keys = dict.fromkeys(key for choice in choices for key in choice)  # a member's own thresholds were not chosen
    return {
        "best_epoch": {name: summary["best_epoch"] for name, summary in summaries.items()},
        "selected_on": {
            key: ", ".join(dict.fromkeys(choice[key] for choice in choices if key in choice)) for key in keys
        },
    }


def timings(folder: str | Path, members: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the cost of each stage (seconds, rows per second, peak memory in MB) from its timing file.

    DVC leaves the files of dropped members in place; these are ignored.
    """
    costs = {path.stem: read_result(path) for path in sorted(Path(folder).glob("*.json"))}
    current = {f"finetune-{name}" for name in members}
    return {stage: cost for stage, cost in costs.items() if stage in current or not stage.startswith("finetune-")}


def show_metrics(path: str | Path, every: bool = False) -> None:
    """Print the metrics file `path` to standard output: a row for each metric, a column for dev and one for test.

    The main scores are overall_normalized and the main metric of each task; a task's simple baseline on dev comes from
    data.json beside the file. If the ensemble was chosen on half of dev, that half has a column, too. Each value is
    followed by its 95 % interval.

    Args:
        path: an evaluation.json.
        every: print the other metrics as well.

    Raises:
        UserError: if the file is missing or damaged.
    """
    metrics = read_result(path)
    if not isinstance(metrics, dict) or "selected_on" not in metrics:
        raise UserError(f"{path}: found no selected_on, which evaluate writes; name a metrics/evaluation.json")
    try:
        _show(metrics, path, every)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path}: found another shape ({error!r}) than evaluate writes; run dvc repro") from error


def _show(metrics: dict[str, Any], path: str | Path, every: bool) -> None:
    splits = ["dev", *(["selection"] if "selection" in metrics else []), "test"]
    table = pd.DataFrame({split: _cells(metrics, split) for split in splits}, dtype=object)
    tasks = {name: values for name, values in metrics.get("dev", {}).items() if isinstance(values, Mapping)}
    main_metrics = {f"{name} {next(iter(values))}": name for name, values in tasks.items()}
    data = Path(path).with_name("data.json")
    simple = read_result(data).get("simple_baselines", {}) if data.exists() else {}
    main = table.reindex(name for name in (OVERALL[1], *main_metrics) if name in table.index)
    main.insert(1, "simple baseline", [_baseline(simple.get(main_metrics.get(name), {}), name) for name in main.index])
    main["test"] = main["test"].str.split().str[0]  # without its interval, so that the table fits a terminal
    console, chosen = output_console(), metrics["selected_on"]
    print_table(main.reset_index(names="score"), "Main scores; in brackets the 95 % interval", console)
    ensemble = f", ensemble chosen on {chosen['ensemble']}" if "ensemble" in chosen else ""
    epochs = f"best epochs {choice}" if (choice := selection_text(chosen)) else "the last epochs"
    covers = ", ".join(metrics["overall_tasks"])
    console.print(f"Overall: means of {covers}; {epochs}{ensemble}", markup=False, soft_wrap=True)
    if every:
        print_table(table.drop(index=main.index).reset_index(names="metric"), "Other metrics", console)
    else:
        console.print("bertrio metrics --all shows all metrics")


def _baseline(models: Mapping[str, Mapping[str, float]], name: str) -> str | None:
    """Return the score of a task's best simple baseline by the metric of a row: `0.526 bag of words`."""
    metric = name.split()[-1]
    scores = {model: values[metric] for model, values in models.items() if metric in values}
    best = max(scores, key=lambda model: scores[model], default=None)
    return f"{scores[best]:.3f} {best.replace('_', ' ')}" if best else None


def _cells(metrics: Mapping[str, Any], split: str) -> dict[str, str]:
    """Return `0.862 [0.841, 0.882]` of each metric of one split."""
    limits = _flat(metrics["intervals"].get(split, {}))
    return {
        name: "{:.3f} [{:.3f}, {:.3f}]".format(value, *limits[name])
        for name, value in _flat(metrics.get(split, {})).items()
    }


def selection_text(selected_on: Mapping[str, str]) -> str:
    """Return how the epochs were chosen, in words; empty if they are the last ones, or if that is unknown."""
    rows, by = (
        [name for name in selected_on.get(key, "").split(", ") if name not in ("", "none", "last")]
        for key in ("rows", "by")
    )
    return f"chosen on {', '.join(rows)} by {', '.join(by)}" if rows else ""


def _flat(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return `{"task metric": ...}` of one split; overall scores go by their own name."""
    flat: dict[str, Any] = {}
    for name, result in results.items():
        is_task = isinstance(result, dict)
        flat |= {f"{name} {metric}": value for metric, value in result.items()} if is_task else {name: result}
    return flat


def read_result(path: str | Path) -> dict[str, Any]:
    """Read a JSON file that a stage wrote.

    Raises:
        UserError: if it is missing or damaged.
    """
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: can't be read ({reason}); run dvc repro, which writes it") from error
