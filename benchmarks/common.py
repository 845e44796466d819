"""Shared parts of the benchmarks: options, a folder with data and an encoder, processes, and tables.

A case is a command in its own process. It writes a small JSON file with its measurements: `seconds`, `peak_memory_mb`,
`rows`. Each turn runs all cases once, so that a drift of the machine affects all cases alike. A ratio is the median of
the ratios within the turns.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
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
PREPARE = ("check", "download", "split", "pretrain_mlm", "prefinetune")  # stages before fine-tuning
Runs = dict[str, list[dict[str, Any]]]  # results of each turn, by case


@dataclass(frozen=True)
class Case:
    """One measured command: a script in benchmarks/ with its arguments, and the peer package that it needs."""

    name: str
    command: tuple[str, ...]
    measures: str
    needs: str | None = None


# ---- options


def parser_of(doc: str | None, repeats: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=at_least_one, default=repeats, help="turns through all cases")
    parser.add_argument("--threads", type=at_least_one, default=os.cpu_count(), help="CPU threads of torch")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for NAME.json and NAME.md")
    parser.set_defaults(only=None)
    return parser


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of data and encoder, and the defaults of the runtime options for scripts without them."""
    parser.set_defaults(batch=16, device="auto", precision="auto")
    parser.add_argument("--data", help="folder of the course's data; default: generated rows")
    parser.add_argument("--encoder", help="folder of the encoder; default: a BERT of random weights (see --hidden)")
    parser.add_argument("--hidden", type=int, default=384, help="hidden size of a BERT of random weights")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", type=int, default=6000, help="generated training rows of each task")
    parser.add_argument("--max-length", type=int, default=128)


def add_runtime_options(parser: argparse.ArgumentParser, batch: bool = True) -> None:
    """Add the options of device, precision and, with `batch`, batch size. Call it after `add_model_options`."""
    if batch:
        parser.add_argument("--batch", type=at_least_one, help="rows in a batch of each task")
    parser.add_argument("--device")
    parser.add_argument("--precision", choices=["auto", "float32", "bf16"])


def add_case_options(parser: argparse.ArgumentParser, peers: bool = False) -> None:
    """Add the option that selects cases and, with `peers`, the one that adds the cases of peers."""
    parser.add_argument("--only", nargs="+", metavar="CASE", help="run only these cases")
    if peers:
        parser.add_argument("--peers", action="store_true", help="run the peers too (extra: peers)")


def add_step_options(parser: argparse.ArgumentParser, steps: int, warmup: int) -> None:
    """Add the numbers of timed steps and of warm-up steps; the clock starts after the last warm-up step."""
    parser.add_argument("--steps", type=at_least_one, default=steps, help="timed steps")
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
    selected = [case for case in cases if not only or case.name in only]
    for case in selected:
        if case.needs and find_spec(case.needs) is None:
            sys.exit(f"case {case.name}: the package {case.needs} is not installed; pip install -e '.[peers]'")
    return selected


# ---- data and encoder


@contextmanager
def prepared(args: argparse.Namespace) -> Iterator[Path]:
    """Yield a temporary folder with params.yaml, data/splits (train and dev), models/tokenizer and models/encoder."""
    from bertrio.config import build_tasks
    from bertrio.config.loading import validate_params
    from bertrio.data.sources import get_source
    from bertrio.data.table import write_table
    from bertrio.model.tokenizer import build_tokenizer

    with tempfile.TemporaryDirectory(prefix="bertrio-benchmark-") as folder:
        work, raw_params = Path(folder), params_of(args)
        write_params(work, raw_params)
        params = validate_params(raw_params, "params.yaml")
        tasks, texts = build_tasks(params), []
        tables = get_source(params.data.source).load_tasks(params.data, tasks).tables
        for name, task in tasks.items():
            for split in ("train", "dev"):
                write_table(tables[name][split], work / "data/splits" / name / f"{split}.parquet")
            texts += [text for column in task.text_columns for text in tables[name]["train"][column]]
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


# ---- processes


def run_benchmark(
    name: str,
    args: argparse.Namespace,
    cases: Sequence[Case],
    tables: Callable[[Runs], Sequence[str]],
    case_arguments: Sequence[str] = (),
) -> None:
    """Run the selected cases on a prepared folder and report their tables."""
    cases = chosen(cases, args.only)
    with prepared(args) as work:
        runs = measure(cases, args, ["--work", str(work), *case_arguments])
    report(name, args, cases, runs, tables(runs))


def measure(cases: Sequence[Case], args: argparse.Namespace, case_arguments: Sequence[str] = ()) -> Runs:
    """Run all cases in `--repeats` turns. The number of the turn is the seed of all its cases.

    Args:
        cases: the cases; each command gets `case_arguments`, `--seed` and `--result FILE`.
        args: options of the benchmark.
        case_arguments: arguments of all cases.
    """
    runs: Runs = {case.name: [] for case in cases}
    for turn in range(1, args.repeats + 1):
        for case in cases:
            with tempfile.TemporaryDirectory() as folder:
                script, *arguments = case.command
                arguments += [*case_arguments, "--seed", str(turn), "--result", f"{folder}/result.json"]
                run_command([sys.executable, str(HERE / script), *arguments], args.threads)
                result = read_json(f"{folder}/result.json")
            runs[case.name].append(result)
            print(f"turn {turn}, {case.name}: {result['seconds']:.2f} s", file=sys.stderr, flush=True)
    return runs


def write_params(folder: Path, params: dict[str, Any], name: str = "params.yaml") -> None:
    """Write params to a file in `folder`."""
    import yaml

    write_text(folder / name, yaml.safe_dump(params, sort_keys=False))


def run_stages(folder: Path, params: dict[str, Any], *stages: str) -> None:
    """Write params.yaml to `folder` and run stages there, each given as the name of its script and its arguments."""
    write_params(folder, params)
    for stage in stages:
        name, *arguments = stage.split()
        command = [sys.executable, str(ROOT / "stages" / f"{name}.py"), *arguments]
        run_command(command, params["runtime"]["threads"], folder)


def run_command(command: Sequence[str], threads: int, folder: Path = ROOT) -> dict[str, float]:
    """Run a command in `folder` and return seconds and peak memory of its process alone. Exit if it fails."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment(threads), stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            sys.exit(f"failed: {shlex.join(command)}\n{log.read()[-3000:]}")
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_memory_mb": usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10),  # Linux counts KiB
    }


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a process: its threads, imports from this repository, and an offline hub."""
    path = os.pathsep.join([str(HERE), str(ROOT / "src")])
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}


# ---- tables


def rates(runs: Runs, case: str) -> list[float]:
    """Return rows per second in each turn."""
    return [run["rows"] / run["seconds"] for run in runs[case]]


def rate_cell(runs: Runs, case: str, decimals: int = 1) -> str:
    """Return the median of the rows per second."""
    return f"{median(rates(runs, case)):.{decimals}f}"


def ratio_cell(numerators: Sequence[float], denominators: Sequence[float]) -> str:
    """Return median, minimum and maximum of the ratios within the turns."""
    ratios = [one / other for one, other in zip(numerators, denominators)]
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def middle(runs: Runs, case: str, key: str) -> float:
    """Return the median of one measurement over the turns."""
    return median(run[key] for run in runs[case])


def median_cells(runs: Runs, case: str, **decimals: int) -> list[str]:
    """Return the medians of several measurements, each with its number of decimals."""
    return [f"{middle(runs, case, key):.{places}f}" for key, places in decimals.items()]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, or an empty text without rows."""
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def machine(threads: int) -> dict[str, Any]:
    """Return the facts that figures depend on: processor and its bf16 support, cores, threads, GPU, versions, date."""
    import torch
    import transformers

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
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
    facts, options = machine(args.threads), {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
    described = [{"name": c.name, "command": c.command, "measures": c.measures, "runs": runs[c.name]} for c in cases]
    write_json(args.out / f"{name}.json", {"machine": facts, "options": options, "cases": described})
    caption = ", ".join(f"{key} {' '.join(v) if isinstance(v, list) else v}" for key, v in facts.items() if v)
    command = shlex.join(["python", f"benchmarks/{name}.py", *sys.argv[1:]])
    text = "\n".join([f"`{command}`\n", f"Machine: {caption}. Medians of {args.repeats}.\n", *filter(None, tables)])
    write_text(args.out / f"{name}.md", text)
    print(text)
