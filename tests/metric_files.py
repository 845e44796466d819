"""Hand-written files of metrics/ for tests of the model card and the report."""

from pathlib import Path

from bertrio.core.files import write_json

EVIL = (
    "<script>alert(1)</script> | [a](http://example.org) `b` *c* _d_ ~~e~~ &amp; www.example.org\n"
    "# f ![g](h) a@b.org <!-- </script> \" ' <img src=x onerror=alert(2)>"
)
PART = {"n": 40, "accuracy": 0.61, "low": 0.45, "high": 0.75}
# Texts from the files below that both the card and the report show.
SHOWN = {
    "metrics": ["0.862 [0.841, 0.882]", "mae (lower is better)"],
    "slices": ["negation", "0.610 [0.450, 0.750]"],
    "calibration": ["temperature", "1.310"],
    "robustness": ["typos", "0.150 [0.070, 0.290]", "swapped order"],
    "challenges": ["677", "0.410 [0.370, 0.450]", "0.876"],
}


def write_metric_files(folder: Path) -> None:
    """Write the metric files of a run on the sample."""
    splits = {"train": {"rows": 20000, "tokens": {"p50": 7, "max": 19}}}
    splits["dev"] = {"rows": 1000, "labels": {"0": 30, "1": 10}, "rows_sharing_a_sentence_with_train": 7}
    data = {
        "source": "sample",
        "origin": {"seed": 0},
        "rejects": {"sst": {"total": 2, "empty text": 2}},
        "tasks": dict.fromkeys(("sst", "qqp", "sts"), splits),
        "simple_baselines": {"sst": {"bag_of_words": {"accuracy": 0.526}}},
    }
    dev = {"sst": {"accuracy": 0.862, "mae": 0.17}, "qqp": {"accuracy": 0.888}, "sts": {"pearson": 0.925}}
    evaluation = {
        "dev": {**dev, "overall_mean": 0.891},
        "intervals": {"dev": {"sst": {"accuracy": [0.841, 0.882]}, "overall_mean": [0.8, 0.9]}},
        "selected_on": {"rows": "dev", "by": "overall_normalized"},
        "best_epoch": {"base": 3},
        "overall_tasks": [EVIL],
    }
    parts = {"with": PART, EVIL: PART, "few": PART | {"n": 3}}
    measures = dict.fromkeys(("ece", "brier", "nll", "ece_scaled", "brier_scaled", "nll_scaled"), 0.125)
    empty = {"n": 0, "flips": None, "shift": None, "low": None, "high": None}
    flips = {"n": 40, "flips": 0.15, "shift": 0.04, "low": 0.07, "high": 0.29}
    paws = {"task": "qqp", "model": "base", "n": 677, "accuracy": 0.41, "intervals": {"accuracy": [0.37, 0.45]}}
    files = {
        "data": data,
        "evaluation": evaluation,
        "slices": {"sst": {"all": {"all rows": PART | {"accuracy": 0.1}}, "negation": parts}},
        "calibration": {"sst": {"rows": 500, "temperature": 1.31, **measures}},
        "robustness": {"sst": {"model": "base", "typos": flips, "swapped_order": empty}},
        "challenges": {EVIL: paws | {"dev": {"accuracy": 0.876}}},
    }
    for name, content in files.items():
        write_json(folder / f"{name}.json", content)
