"""The one exception that users are meant to see, and what is often said with it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Something that the user can put right: a param, a file, a row, a missing network.

    The message names the file, row or param, what was found, what was expected and what to do. Stages and the
    command line print it without a traceback and exit with code 2.
    """


def missing_path(param: str, value: object) -> UserError:
    """The error for a param whose file or folder is not there."""
    return UserError(
        f"{param}: there is no file or folder {value} (seen from {Path.cwd()}). Relative paths start at the "
        "repository; experiments with --queue or --temp run in a copy of it and need an absolute path"
    )


def missing_package(what: str, packages: Iterable[str], extra: str) -> UserError:
    """The error for a command or param that takes packages which an extra of bertrio installs."""
    named = ", ".join(packages)
    return UserError(f"{what}: needs the package {named}; install it with: pip install 'bertrio[{extra}]'")


@contextmanager
def writing_to(out: str | Path) -> Iterator[None]:
    """Makes a message to the user of what the system has against writing to the place that the user named.

    Args:
        out: as the message names it, such as `--out FOLDER`.

    Raises:
        UserError: for any OSError in the block.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{out}: can't be written ({error.strerror or error}); name another place") from error


def need(path: str | Path) -> Path:
    """`path`, if it is there.

    Raises:
        UserError: if it is not: an earlier stage makes it.
    """
    if not Path(path).exists():
        raise UserError(f"{path}: is missing; an earlier stage makes it: run dvc repro, or the stages in order")
    return Path(path)
