"""The exception for errors that users can fix, and messages used in several places."""

import difflib
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("huggingface_hub", "numpy", "pandas", "pydantic", "pyarrow", "rich", "torch", "transformers")
PIPELINE = ("accelerate", "datasets", "dvc", "matplotlib", "scipy", "sklearn", "tabulate", "torchjd")  # of the extra


class UserError(Exception):
    """An error that the user can fix: a param, a file, a row, a missing network.

    The message names the file, row or param, what was found, what was expected and what to do. Stages and the
    command line print it without a traceback and exit with code 2.
    """


def need_environment(packages: Iterable[str] = PACKAGES + PIPELINE) -> None:
    """End the process with a message if this Python lacks packages, by default those of every stage, or there is no
    folder for temporary files, which some of them need when they are imported. Needs none of them."""
    problem = ""
    if missing := [name for name in packages if find_spec(name) is None]:
        problem = (
            f"{sys.executable} lacks the packages of bertrio: {', '.join(missing)}. At the root of the repository, run "
            "make (once) and source .venv/bin/activate (in each terminal); or, in an environment of your own, pip "
            "install -e '.[pipeline]'"
        )
    try:
        tempfile.gettempdir()
    except OSError as error:
        problem = f"{error.strerror}; set TMPDIR to a folder that can be written to and has room"
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)


def missing_path(param: str, value: object, base: str = "the repository") -> UserError:
    """Return the error for a param that names a missing file or folder; `base` is where relative paths start."""
    return UserError(
        f"{param}: there is no file or folder {value} (seen from {Path.cwd()}). Relative paths start at {base}; "
        "experiments with --queue or --temp run in a copy of the repository and need an absolute path"
    )


def need_packages(needed_by: str, packages: Iterable[str], extra: str) -> None:
    """Check that the packages of an extra of bertrio are installed, which a command or param needs.

    Raises:
        UserError: naming the missing packages and the extra.
    """
    if missing := ", ".join(name for name in packages if find_spec(name) is None):
        raise UserError(f"{needed_by}: needs the package {missing}; install it with: pip install 'bertrio[{extra}]'")


@contextmanager
def writing_to(out: str | Path) -> Iterator[None]:
    """Turn an OSError while writing to a path given by the user into a message.

    Args:
        out: name of the path in the message, such as `--out FOLDER`.

    Raises:
        UserError: for any OSError in the block.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{out}: can't be written ({error.strerror or error}); name another place") from error


def need(path: str | Path) -> Path:
    """Return `path` if it exists.

    Raises:
        UserError: if it is missing; the message names the stages that create it.
    """
    if not Path(path).exists():
        raise UserError(f"{path}: is missing; an earlier stage makes it: run dvc repro, or the stages in order")
    return Path(path)


def did_you_mean(name: str, known: Iterable[str], prefix: str = "", else_all: bool = False) -> str:
    """Return the end of a message about an unknown name: the closest known name, if one is close.

    Args:
        name: the unknown name.
        known: the known names.
        prefix: what stands before the suggested name, such as the block of a param.
        else_all: list all known names if none is close.
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {prefix}{close[0]}?"
    return f"; known here: {', '.join(known) or 'none'}" if else_all else ""
