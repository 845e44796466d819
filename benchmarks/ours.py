"""One case of bertrio, each a command that the other scripts start as they start the peers.

Training: steps (`train`), steps under torch's profiler (`profile`) or with checkpoints (`checkpoint`), steps of
masked-language-model pretraining (`mlm`), whole epochs on one task with a dev score (`score`), and all training stages
with a dev score after every epoch (`curve`). Prediction: outputs for the dev rows of one task (`infer`), the same from
TSV to TSV as by `bertrio predict` (`predict`), and the search of `bertrio mine` (`mine`).
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean
from types import SimpleNamespace
from typing import Any

import numpy as np
from case import Clock, case_parser, load, main_metric, save_untrained, synchronize, trainer_of, write_result
from common import at_least_one

# ---- training


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Train as the stage `finetune` does, without scoring."""
    params, runtime = load(args)
    trainer, model, rows = trainer_of(args, params, runtime)
    return time_steps(args, trainer, runtime) | work_of(model.encoder.transformer.config, rows)


def mlm(args: argparse.Namespace) -> dict[str, Any]:
    """Pretrain as the stage `pretrain_mlm` does, on the training texts of all tasks."""
    from case import language_model

    from bertrio.model.attention import cheap_dropout
    from bertrio.model.tokenizer import load_tokenizer
    from bertrio.training.mlm import build_trainer

    params, runtime = load(args)
    tokenizer = load_tokenizer(args.work / "models/tokenizer")
    model, blocks = language_model(args, params, tokenizer)
    cheap_dropout(model)
    steps = args.warmup + args.steps
    options = params.mlm.model_copy(update={"epochs": steps, "max_steps": steps})
    params = params.model_copy(update={"mlm": options})
    trainer = build_trainer(model.to(runtime.device), blocks, np.arange(len(blocks)), tokenizer, params, runtime)
    return time_steps(args, trainer, runtime) | work_of_blocks(model.config, params.mlm)


def time_steps(args: argparse.Namespace, trainer: Any, runtime: Any) -> dict[str, Any]:
    """Train and return the measurements of the timed steps."""
    clock = Clock(args.warmup, args.steps, runtime.device, lambda: trainer.meter.rows_seen)
    trainer.callbacks = [*trainer.callbacks, clock]
    run_all(trainer)
    return clock.measured() | {"runtime": runtime.describe()}


def run_all(trainer: Any, **options: Any) -> None:
    """Train to the end, without scoring."""
    for _ in trainer.run("benchmark", **options):
        pass


def profile(args: argparse.Namespace) -> dict[str, Any]:
    """Train for `--steps` without the profiler and as many under it; return [ms, calls] per step of each operation."""
    import torch

    steps = args.steps
    args.steps = 2 * steps
    params, runtime = load(args)
    trainer, _, _ = trainer_of(args, params, runtime)
    plain, profiled = (Clock(first, steps, runtime.device, lambda: 0) for first in (args.warmup, args.warmup + steps))
    on_gpu = runtime.device.type == "cuda"
    kinds = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    profiler = torch.profiler.profile(activities=kinds)

    def after_step(step: int) -> None:
        plain(step)
        if step == plain.last:
            profiler.start()
        profiled(step)
        if step == profiled.last:
            profiler.stop()

    trainer.callbacks = [*trainer.callbacks, after_step]
    run_all(trainer)
    return {
        "seconds": plain.measured()["seconds"],
        "profiled_seconds": profiled.measured()["seconds"],
        "steps": steps,
        "operations": operations_of(profiler.key_averages(), on_gpu, steps),
        "runtime": runtime.describe(),
    }


def operations_of(events: Iterable[Any], on_gpu: bool, steps: int) -> dict[str, tuple[float, float]]:
    """Return milliseconds and calls per step of each operation, from the averages of torch's profiler.

    The time of a kernel belongs to the operation that started it. The kernel's own event on the device is ignored.
    """
    from torch.autograd import DeviceType

    self_time = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    operations = [event for event in events if event.device_type == DeviceType.CPU]
    return {event.key: (getattr(event, self_time) / 1000 / steps, event.count / steps) for event in operations}


class Blocks:
    """Step callback that saves at the beginning of every other block, and times blocks and saves.

    Args:
        checkpoints: writes the saves.
        warmup: steps before the first block, which has no save.
        length: steps of a block.
        device: synchronized before each reading of the time.
    """

    def __init__(self, checkpoints: Any, warmup: int, length: int, device: Any) -> None:
        self._checkpoints, self._warmup, self._length, self._device = checkpoints, warmup, length, device
        self._starts: list[float] = []
        self.saves: list[float] = []

    def __call__(self, step: int) -> None:
        block, step_in_block = divmod(step - self._warmup, self._length)
        if step_in_block or block < 0:
            return
        synchronize(self._device)
        self._starts.append(time.perf_counter())
        if block % 2:
            self._checkpoints.after_step(step, force=True)
            self.saves.append(time.perf_counter() - self._starts[-1])

    def seconds(self) -> tuple[list[float], list[float]]:
        """Return the seconds of blocks without a save, and of blocks with one."""
        durations = [end - start for start, end in zip(self._starts, self._starts[1:])]
        return durations[::2], durations[1::2]


def checkpoint(args: argparse.Namespace) -> dict[str, Any]:
    """Train `--saves` blocks of `--block` steps that begin with a save, and as many without one."""
    from bertrio.config.groups import CheckpointParams
    from bertrio.training.checkpoints import Checkpoints
    from bertrio.training.evaluator import Selection

    args.steps = 2 * args.saves * args.block
    params, runtime = load(args)
    trainer, model, _ = trainer_of(args, params, runtime)
    best = Selection("overall_normalized", "dev")
    best.weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
    options = CheckpointParams(minutes=None, steps=None)
    opened = Checkpoints.open("benchmark", {"process": os.getpid()}, options, runtime)
    with opened as checkpoints, checkpoints.resumed({"trainer": trainer, "best": best}):
        blocks = Blocks(checkpoints, args.warmup, args.block, runtime.device)
        run_all(trainer, between_steps=blocks)
        sizes = [path.stat().st_size for path in checkpoints.folder.glob("step-*.safetensors")]
        checkpoints.finish()
    if len(blocks.saves) != args.saves or not sizes:
        sys.exit(f"{checkpoints.folder}: {len(blocks.saves)} saves, {len(sizes)} files, expected {args.saves}")
    plain, saved = map(mean, blocks.seconds())
    return {
        "seconds": mean(blocks.saves),
        "with_what_follows": saved - plain,
        "saves": blocks.saves,
        "ms_per_step": 1000 * plain / args.block,
        "megabytes": mean(sizes) / 2**20,
        "runtime": runtime.describe(),
    }


def score(args: argparse.Namespace) -> dict[str, Any]:
    """Train on `--task` alone for `--epochs` and score its dev rows."""
    from bertrio.training.build import load_split
    from bertrio.training.evaluator import predict

    params, runtime = load(args)
    trainer, scored_model, _ = trainer_of(args, params, runtime, args.epochs)
    run_all(trainer)
    dev = load_split(params, "dev", args.work / "data/splits", args.work / "models/tokenizer")[args.task]
    predictions = predict(scored_model, {args.task: dev}, "dev", params.finetune.eval_batch_size)
    return {
        "seconds": trainer.meter.seconds,
        "rows": trainer.meter.rows_seen,
        "score": main_metric(dev.task, predictions),
        "runtime": runtime.describe(),
    }


def curve(args: argparse.Namespace) -> dict[str, Any]:
    """Run all training stages, and return seconds and dev overall_normalized after every epoch of every member.

    The params are those of the folder for `--seed`. The time includes all work of the stages before fine-tuning, and
    the steps of fine-tuning. Members train one after the other. The score is that of all members so far, each after
    its latest epoch, combined by `ensemble.combine`; there is none until each task has a member that answers it. All
    epochs run, and none is selected: `finetune.patience` and `finetune.select` have no effect.
    """
    from bertrio.config import build_tasks, load_params, member_params
    from bertrio.core.runtime import set_up
    from bertrio.evaluation.ensembling import combine
    from bertrio.evaluation.metrics import evaluate_predictions
    from bertrio.model.config import encoder_width
    from bertrio.model.multitask import build_model, load_heads
    from bertrio.training.build import build_trainer, resolve_precision
    from bertrio.training.evaluator import predict
    from bertrio.training.finetune import Inputs, load_rows
    from bertrio.training.mlm import pretrain_mlm
    from bertrio.training.prefinetune import prefinetune

    os.environ["BERTRIO_CHECKPOINTS"] = str(args.work / f"checkpoints-{args.seed}")  # never resume from another run
    params = load_params(args.work / f"params-{args.seed}.yaml")
    folders = ("data/corpora", "data/splits", "models/tokenizer", "models/encoder", "models/prefinetuned")
    corpora, splits, tokenizer, encoder, prefinetuned = (str(args.work / name) for name in folders)
    began = time.perf_counter()
    runtime = set_up(**params.runtime.model_dump())
    pretrain_mlm(params, runtime, corpora, tokenizer, encoder)
    prefinetune(params, encoder, splits, tokenizer, prefinetuned)
    seconds = time.perf_counter() - began

    tasks, tasks_by_member = build_tasks(params), {name: params.answers(name) for name in params.ensemble.members}
    points, predictions, row_count = [], {}, 0
    for name in params.ensemble.members:
        member = member_params(params, name)
        width = encoder_width(f"{prefinetuned}/encoder")
        runtime = resolve_precision(member, set_up(**member.runtime.model_dump(), width=width))
        train, scored, _ = load_rows(member, Inputs(splits, tokenizer, prefinetuned))
        model = build_model(member, f"{prefinetuned}/encoder", runtime)
        load_heads(model, prefinetuned)
        rows = {task: train[task] for task in member.trains}
        trainer, scored_model = build_trainer(member, model, rows, teacher=args.work / "data/teacher")
        for _ in trainer.run("benchmark"):
            predictions[name] = predict(scored_model, scored["dev"], "dev", member.finetune.eval_batch_size)
            if set(tasks).difference(*(tasks_by_member[trained] for trained in predictions)):
                continue
            combined, _ = combine(predictions, params.ensemble.combine, tasks, tasks_by_member)
            overall = evaluate_predictions(combined, tasks)["dev"]["overall_normalized"]
            points.append((seconds + trainer.meter.seconds, overall))
        seconds, row_count = seconds + trainer.meter.seconds, row_count + trainer.meter.rows_seen
    return {"seconds": seconds, "rows": row_count, "points": points, "runtime": runtime.describe()}


def work_of(config: Any, rows: dict[str, Any]) -> dict[str, float]:
    r"""Return mean tokens and floating-point operations per row, with equal numbers of rows from all tasks.

    Training a row of t tokens takes :math:`6 N t + 12 L H t^2` operations: a multiplication and an addition for each
    weight, forward once and backward twice, and the same for attention's two products. N are the weights of the
    encoder's matrices, :math:`L (4 H^2 + 2 H I)`, without embeddings. Chowdhery et al. 2022, "PaLM", appendix B.
    Padding does not count.
    """
    layers, hidden = config.num_hidden_layers, config.hidden_size
    weights = layers * (4 * hidden**2 + 2 * hidden * config.intermediate_size)
    lengths = [task_rows.lengths.astype(float) for task_rows in rows.values()]
    operations = [(6 * weights * tokens + 12 * layers * hidden * tokens**2).mean() for tokens in lengths]
    return {"tokens_per_row": mean(tokens.mean() for tokens in lengths), "flop_per_row": mean(operations)}


def work_of_blocks(config: Any, options: Any) -> dict[str, float]:
    """Return the same for a block of `mlm.block_size` tokens; the head's two products run on masked tokens alone."""
    tokens = options.block_size
    encoder = work_of(config, {"mlm": SimpleNamespace(lengths=np.array([tokens]))})["flop_per_row"]
    head = 6 * config.hidden_size * (config.hidden_size + config.vocab_size) * options.mask_probability * tokens
    return {"tokens_per_row": tokens, "flop_per_row": encoder + head}


# ---- prediction


def infer(args: argparse.Namespace) -> dict[str, Any]:
    """Tokenise and predict the dev rows of `--task`, after a warm-up on a few of them."""
    from bertrio.config import build_tasks
    from bertrio.data.batches import Rows
    from bertrio.data.tokens import tokenise
    from bertrio.model.multitask import build_model
    from bertrio.model.tokenizer import load_tokenizer
    from bertrio.training import loop

    params, runtime = load(args)
    model = build_model(params, args.work / "models/encoder", runtime)
    tokenizer, batch = load_tokenizer(args.work / "models/tokenizer"), params.finetune.eval_batch_size
    task = build_tasks(params)[args.task]

    def predict_rows(frame: Any) -> None:
        rows = Rows(frame, task, tokenise(frame, task, tokenizer, params.encoder.max_length))
        loop.infer(model, rows, batch)
        synchronize(runtime.device)

    return time_dev_rows(args, predict_rows, 4 * batch) | {"runtime": runtime.describe()}


def predict(args: argparse.Namespace) -> dict[str, Any]:
    """Predict the dev rows of `--task` from TSV to TSV, after a warm-up on a few of them."""
    from bertrio.inference.batch_predict import predict_file
    from bertrio.inference.predictor import Predictor

    with tempfile.TemporaryDirectory() as folder:
        save_untrained(args, Path(folder) / "model")
        predictor = Predictor.load(Path(folder) / "model", precision=args.precision)

    def predict_rows(frame: Any) -> None:
        source = io.BytesIO(frame.to_csv(sep="\t", index=False).encode())
        predict_file(predictor, args.task, "tsv", source, io.BytesIO())

    return time_dev_rows(args, predict_rows, 256)


def time_dev_rows(args: argparse.Namespace, predict_rows: Any, warmup_rows: int) -> dict[str, Any]:
    """Time the prediction of the dev rows of `--task`, after a warm-up on the first of them."""
    from bertrio.data.table import read_table

    frame = read_table(args.work / "data/splits" / args.task / "dev.parquet")
    predict_rows(frame.head(warmup_rows))
    began = time.perf_counter()
    predict_rows(frame)
    return {"seconds": time.perf_counter() - began, "rows": len(frame)}


def mine(args: argparse.Namespace) -> dict[str, Any]:
    """Search the 100 most similar pairs of random vectors, about 20 around each centre."""
    from bertrio.inference.mining import most_similar

    generator, count = np.random.default_rng(args.seed), args.sentences
    centres = generator.normal(size=(max(1, count // 20), args.width))
    noise = 0.7 * generator.normal(size=(count, args.width))
    vectors = (centres[generator.integers(0, len(centres), count)] + noise).astype(np.float32)
    began, cpu_began = time.perf_counter(), time.process_time()
    most_similar(vectors, top=100)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "rows": count}


COMMANDS = {
    command.__name__: command for command in (train, mlm, profile, checkpoint, score, curve, infer, predict, mine)
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = case_parser(__doc__)
    parser.add_argument("command", choices=list(COMMANDS))
    parser.add_argument("--task", default="qqp", help="score, infer and predict: task of the dev rows")
    parser.add_argument("--epochs", type=at_least_one, default=1, help="score: epochs of training")
    parser.add_argument("--saves", type=int, help="checkpoint: number of saves")
    parser.add_argument("--block", type=int, help="checkpoint: steps between two measurements")
    parser.add_argument("--precision", default="auto", help="predict: precision of the predictor")
    parser.add_argument("--sentences", type=int, help="mine: number of vectors")
    parser.add_argument("--width", type=int, help="mine: size of the vectors")
    args = parser.parse_args(argv)
    write_result(args, COMMANDS[args.command](args))


if __name__ == "__main__":
    main()
