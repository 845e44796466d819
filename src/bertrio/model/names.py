"""What an encoder's name stands for: `tiny`, a local folder, or an id on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertrio.errors import UserError, missing_path


def local_folder(name: str) -> Path | None:
    """The folder that an encoder's name stands for; None for `tiny` and for hub ids.

    Raises:
        UserError: if the name can only be a path, and nothing is there.
    """
    if name == "tiny":
        return None
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise missing_path("encoder.name", name)
    return None


@contextmanager
def source_of(name: str, revision: str | None) -> Iterator[str]:
    """What to hand to `from_pretrained` for an encoder's name; its failures become messages for the user."""
    folder = local_folder(name)
    try:
        yield str(folder or name)
    except (OSError, ValueError, KeyError, ImportError) as error:
        if isinstance(error, FileExistsError):
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if folder:
            advice = "expected a folder with config.json, safetensors weights and tokenizer files"
        else:
            at = f" at revision {revision}" if revision else ""
            advice = f"looked for this id{at} on the Hugging Face hub; without a network, give a local folder or tiny"
        raise UserError(f"encoder.name: {name} can't be loaded ({reason}); {advice}") from error
