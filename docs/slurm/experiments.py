"""Run DVC experiments as an array of Slurm jobs: one clone a job, one DVC cache, results back by `dvc exp push`.

    pip install submitit
    dvc cache dir --local /shared/me/dvc-cache
    python docs/slurm/experiments.py --clones /shared/me/clones --minutes 120 --slurm partition=gpu gpus_per_node=1 \
        --run 'cool -S finetune.lr=1e-5' 'warm -S finetune.lr=3e-5'

Each text is a name and options of `dvc exp run`. The experiments start from HEAD of this repository and come back to
it. All nodes must see the repository, its DVC cache and the folder of the clones. The same command runs a job that was
stopped again, which goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
from pathlib import Path

import submitit


def output_of(*command: str) -> str:
    """Run a command here and return what it prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_experiment(name: str, options: list[str], origin: str, commit: str, cache: str, clones: Path) -> str:
    """Run one experiment in a clone of its own, which is removed once the result is back in `origin`."""
    clone = clones / name
    if not clone.exists():
        subprocess.run(["git", "clone", "--quiet", origin, clone], check=True)
    for command in (
        ["git", "checkout", "--quiet", "--force", commit],
        ["dvc", "cache", "dir", "--local", cache],
        ["dvc", "checkout", "--quiet", "--force", "--allow-missing"],  # stages of HEAD's dvc.lock need not run again
        ["dvc", "exp", "run", "--name", name, *options],
        ["dvc", "exp", "push", "--force", "--no-cache", "origin", name],  # origin has the same cache
    ):
        subprocess.run(command, cwd=clone, check=True)
    shutil.rmtree(clone)
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="+", required=True, metavar="'NAME OPTIONS'", help="experiments")
    parser.add_argument("--clones", type=Path, required=True, help="folder of the clones and the jobs' logs")
    parser.add_argument("--minutes", type=int, default=60, help="time limit of a job")
    parser.add_argument("--parallel", type=int, default=8, help="jobs at the same time")
    parser.add_argument("--slurm", nargs="*", default=[], metavar="KEY=VALUE", help="more parameters of sbatch")
    args = parser.parse_args()
    clones = args.clones.absolute()
    where = output_of("git", "rev-parse", "--show-toplevel"), output_of("git", "rev-parse", "HEAD")
    cache = str(Path(output_of("dvc", "cache", "dir")).absolute())
    executor = submitit.AutoExecutor(clones / "logs", cluster="slurm")
    executor.update_parameters(name="bertrio", timeout_min=args.minutes, slurm_array_parallelism=args.parallel)
    executor.update_parameters(**{f"slurm_{key}": value for key, value in (text.split("=", 1) for text in args.slurm)})
    with executor.batch():
        runs = [shlex.split(text) for text in args.run]
        jobs = [executor.submit(run_experiment, name, options, *where, cache, clones) for name, *options in runs]
    for job, (name, *_) in zip(jobs, runs, strict=True):
        print(f"{job.job_id}  {name}")


if __name__ == "__main__":
    main()
