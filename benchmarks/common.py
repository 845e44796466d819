"""Shared parts of the benchmarks: options, a folder with data and an encoder, case processes, and tables.

A case is a command in its own process. It writes a small JSON file with its measurements: `seconds`, `peak_memory_mb`,
`rows`. Each turn runs all cases once, so that a drift of the machine affects all cases alike. A ratio is the median of
the ratios within the turns.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "benchmarks"
sys.path.insert(0, str(ROOT / "src"))

from bertrio.core.files import read_json, write_json, write_text

TASKS = ("sst", "qqp", "sts")
BERT_VOCABULARY = 30522  # rows of word embeddings in a random encoder; the optimizer updates all of them
Runs = dict[str, list[dict[str, Any]]]  # results of each turn, by case


@dataclass(frozen=True)
class Case:
    """One measured command: a script in benchmarks/ with its arguments, and the peer package that it needs."""

    name: str
    command: tuple[str, ...]
    measures: str
    needs: str | None = None


def parser_of(doc: str | None, repeats: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=at_least_one, default=repeats, help="turns through all cases")
    parser.add_argument("--threads", type=at_least_one, default=os.cpu_count(), help="CPU threads of torch")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="gets NAME.json and NAME.md")
    return parser


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of data and encoder, and defaults of the runtime options for scripts without them."""
    parser.set_defaults(batch=16, device="auto", precision="auto")
    parser.add_argument("--data", help="the course's folder; without it, rows made up here")
    parser.add_argument("--encoder", help="a folder; without it, a BERT of random weights (see --hidden)")
    parser.add_argument("--hidden", type=int, default=384, help="hidden size of a BERT of random weights")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", type=int, default=6000, help="training rows made up for each task")
    parser.add_argument("--fill", action="store_true", help="repeat each made-up text until it fills --max-length")
    parser.add_argument("--max-length", type=int, default=128)


def add_runtime_options(parser: argparse.ArgumentParser, batch: bool = True) -> None:
    """Add the options of device, precision and, with `batch`, batch size. Call it after `add_model_options`."""
    if batch:
        parser.add_argument("--batch", type=at_least_one, help="rows in a batch of each task")
    parser.add_argument("--device")
    parser.add_argument("--precision", choices=["auto", "float32", "bf16"])


def add_case_options(parser: argparse.ArgumentParser, peers: bool = False) -> None:
    """Add the option that selects cases and, with `peers`, the one that adds the cases of peers."""
    parser.add_argument("--only", nargs="+", metavar="CASE", help="these cases alone")
    if peers:
        parser.add_argument("--peers", action="store_true", help="run the peers too (extra: peers)")


def add_step_options(parser: argparse.ArgumentParser, steps: int, warmup: int) -> None:
    """Add the numbers of timed steps and of warm-up steps; the clock starts after the last warm-up step."""
    parser.add_argument("--steps", type=at_least_one, default=steps, help="steps on the clock")
    parser.add_argument("--warmup", type=at_least_one, default=warmup, help="steps before the clock starts, 1 or more")


def at_least_one(text: str) -> int:
    """Parse a whole number of 1 or more; argparse adds the option to errors."""
    if not text.isdecimal() or (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, found {text}")
    return number


def chosen(cases: Sequence[Case], only: Sequence[str] | None) -> list[Case]:
    """Return the cases of `--only`, by default all. Exit if a case is unknown or its peer is not installed."""
    unknown = set(only or ()) - {case.name for case in cases}
    if unknown:
        sys.exit(f"--only: no case {', '.join(sorted(unknown))}; there are {', '.join(case.name for case in cases)}")
    picked = [case for case in cases if not only or case.name in only]
    for case in picked:
        if case.needs and find_spec(case.needs) is None:
            sys.exit(f"case {case.name}: there is no package {case.needs} here; pip install -e '.[peers]'")
    return picked


@contextmanager
def prepared(args: argparse.Namespace) -> Iterator[Path]:
    """Yield a temporary folder with params.yaml, data/splits (train and dev), models/tokenizer and models/encoder."""
    import yaml

    from bertrio.config import build_tasks
    from bertrio.config.loading import validate_params
    from bertrio.data.sources import get_source
    from bertrio.data.table import write_table
    from bertrio.model.tokenizer import build_tokenizer

    with tempfile.TemporaryDirectory(prefix="bertrio-benchmark-") as folder:
        work, raw = Path(folder), params_of(args)
        (work / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
        params = validate_params(raw, "params.yaml")
        tables, texts = get_source(params.data.source).load_tasks(params.data, build_tasks(params)).tables, []
        for name, task in build_tasks(params).items():
            for split in ("train", "dev"):
                frame = fill_texts(tables[name][split], task.text_columns, args.max_length if args.fill else 0)
                if split == "train":
                    texts += [text for column in task.text_columns for text in frame[column]]
                write_table(frame, work / "data/splits" / name / f"{split}.parquet")
        tokenizer = build_tokenizer(params.encoder, texts, work / "models/tokenizer")
        write_encoder(params, len(tokenizer), work / "models/encoder")
        yield work


def params_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return params.yaml with the overrides of the benchmark: joint steps, equal batch sizes, pairs in one sequence."""
    from bertrio.config import merged, read_yaml

    dev_rows = max(1, args.rows // 3)
    cross = {"batch_size": args.batch, "encoding": "cross", "head": "linear", "dropout": 0.1}  # as the peers
    overrides: dict[str, Any] = {
        "runtime": {"device": args.device, "precision": args.precision, "threads": args.threads},
        "data": {"sample": {"train_rows": args.rows, "dev_rows": dev_rows, "test_rows": 1}},
        "tasks": {"sst": {"batch_size": args.batch}, "qqp": cross, "sts": cross},
        "mlm": {"batch_size": args.batch, "block_size": args.max_length},
        "encoder": {"max_length": args.max_length},
        "schedule": {"until": "longest"},
    }
    if args.data:
        overrides["data"] = {"source": "cs224n", "path": str(Path(args.data).resolve())}
    if args.encoder:
        overrides["encoder"]["name"] = str(Path(args.encoder).resolve())
    else:
        overrides["encoder"]["tiny"] = {
            "hidden_size": args.hidden,
            "layers": args.layers,
            "heads": max(1, args.hidden // 64),
            "intermediate_size": 4 * args.hidden,
            "lr_factor": 1.0,
        }
    return merged(read_yaml(ROOT / "params.yaml"), overrides)


def fill_texts(frame: Any, columns: Sequence[str], words: int) -> Any:
    """Return the table with each text repeated to at least `words` words, which have at least as many tokens."""
    repeated = {
        column: [" ".join([text] * -(-words // len(text.split()))) if words else text for text in frame[column]]
        for column in columns
    }
    return frame.assign(**repeated)


def write_encoder(params: Any, vocab_size: int, folder: Path) -> None:
    """Write the encoder as the stages before training do; a random one has as many word embeddings as BERT."""
    from transformers import AutoModel

    from bertrio.model.encoder import initial_transformer
    from bertrio.model.tiny import tiny_config

    if params.encoder.name == "tiny":
        config = tiny_config(params.encoder.tiny, max(vocab_size, BERT_VOCABULARY))
        config.initializer_range = 0.02
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.1
        encoder = AutoModel.from_config(config)
    else:
        encoder = initial_transformer(params.encoder, vocab_size)
    encoder.save_pretrained(folder)


def measure(cases: Sequence[Case], args: argparse.Namespace, common: Sequence[str] = ()) -> Runs:
    """Run all cases in `--repeats` turns. The number of the turn is the seed of all its cases.

    Args:
        cases: the cases; each command gets `common`, `--seed` and `--result FILE`.
        args: options of the benchmark.
        common: arguments of all cases.
    """
    runs: Runs = {case.name: [] for case in cases}
    for turn in range(1, args.repeats + 1):
        for case in cases:
            runs[case.name].append(run_case(case, [*common, "--seed", str(turn)], args.threads))
            last = runs[case.name][-1]
            print(f"turn {turn}, {case.name}: {last['seconds']:.2f} s", file=sys.stderr, flush=True)
    return runs


def run_case(case: Case, common: Sequence[str], threads: int) -> dict[str, Any]:
    """Run one case in its own process and return its result."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        script, *arguments = case.command
        command = [sys.executable, str(HERE / script), *arguments, *common, "--result", str(result)]
        done = subprocess.run(command, env=environment(threads), capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"case {case.name} failed: {' '.join(command)}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
        return read_json(result)


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a case: its threads, imports from this repository, and offline hub."""
    path = os.pathsep.join([str(HERE), str(ROOT / "src")])
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


def rates(runs: Runs, case: str) -> list[float]:
    """Return rows per second in each turn."""
    return [run["rows"] / run["seconds"] for run in runs[case]]


def ratio_cell(above: Sequence[float], below: Sequence[float]) -> str:
    """Return median, minimum and maximum of the ratios within the turns."""
    ratios = [one / other for one, other in zip(above, below)]
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def middle(runs: Runs, case: str, key: str) -> float:
    """Return the median of one measurement over the turns."""
    return median(run[key] for run in runs[case])


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, or an empty text without rows."""
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def machine(threads: int) -> dict[str, Any]:
    """Return what the figures depend on: processor and its bf16 support, cores, threads, GPU, versions and date."""
    import torch
    import transformers

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    fields = dict(map(str.strip, line.split(":", 1)) for line in lines if ":" in line)
    flags = fields.get("flags", "").split()
    return {
        "cpu": fields.get("model name") or platform.processor() or platform.machine(),
        "bf16": [flag for flag in ("avx512_bf16", "amx_bf16") if flag in flags],
        "cores": os.cpu_count(),
        "threads": threads,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "date": date.today().isoformat(),
    }


def report(name: str, args: argparse.Namespace, cases: Sequence[Case], runs: Runs, tables: Sequence[str]) -> None:
    """Write all measurements to NAME.json and the tables to NAME.md, and print the tables."""
    here, options = machine(args.threads), {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
    described = [{"name": c.name, "command": c.command, "measures": c.measures, "runs": runs[c.name]} for c in cases]
    write_json(args.out / f"{name}.json", {"machine": here, "options": options, "cases": described})
    facts = ", ".join(f"{key} {' '.join(v) if isinstance(v, list) else v}" for key, v in here.items() if v)
    command = " ".join(["python", f"benchmarks/{name}.py", *args.argv])
    text = "\n".join([f"`{command}`\n", f"Machine: {facts}. Medians of {args.repeats}.\n", *filter(None, tables)])
    write_text(args.out / f"{name}.md", text)
    print(text)
