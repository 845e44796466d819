"""Model cards of exports, and their upload to the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bertrio.config.reading import yaml_text
from bertrio.core.errors import UserError
from bertrio.core.files import write_text
from bertrio.core.tasks import Task
from bertrio.inference.trained_model import TrainedModel

CARD = "README.md"
LIBRARIES = {  # by format: library and pipeline of the hub
    "encoder": ("transformers", "feature-extraction"),
    "classifier": ("transformers", "text-classification"),
    "cross-encoder": ("sentence-transformers", "text-ranking"),
    "sentence-transformer": ("sentence-transformers", "sentence-similarity"),
    "onnx": ("onnx", "text-classification"),
}


def write_export_card(
    folder: Path, source: Path, model: TrainedModel, format: str, task: Task | None, name: str
) -> None:
    """Write the model card of an export: how to load it, and what the card of its run says of data and metrics.

    Args:
        folder: the export.
        source: the model folder; the run's card, models/README.md, is looked for above it.
        model: the exported model.
        format: name of the export's format.
        task: the exported task; None for the encoder alone.
        name: id of the repository on the hub, or name of the folder, for the code that loads it.
    """
    from jinja2 import StrictUndefined, Template

    source = source.resolve()
    front, run = _run_card(source)
    alone = source.parent.name != "members" or len(list(source.parent.iterdir())) == 1
    results = front.pop("model-index", [{"results": []}])[0]["results"]
    measured = [result for result in results if alone and task is not None and result["task"]["name"] == task.name]
    library, pipeline = LIBRARIES[format]
    front = {"license": "unknown", **front, "library_name": library, "pipeline_tag": pipeline}
    if measured:
        front["model-index"] = [{"name": name, "results": measured}]
    template = (Path(__file__).parent / "card.md").read_text(encoding="utf-8")  # its texts stand in code, as JSON
    text = Template(template, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).render(
        front=yaml_text(front),
        format=format,
        task=task,
        name=json.dumps(name),
        classes=json.dumps(dict(enumerate(task.target.class_names)), ensure_ascii=False) if task else None,
        members=None if alone else model.name,
        run=run,
    )
    write_text(folder / CARD, text.strip() + "\n")


def _run_card(source: Path) -> tuple[dict[str, Any], str | None]:
    """Return the front matter and the text of the card of the model's run, without its title and how to load it."""
    from huggingface_hub import ModelCard

    for parent in source.parents[:2]:
        if (parent / CARD).is_file():
            card = ModelCard.load(parent / CARD, ignore_metadata_errors=True)
            if card.data.library_name == "bertrio":
                return card.data.to_dict(), card.text.partition("# bertrio")[2].partition("\n## How to load")[0].strip()
    return {}, None


def push(folder: str | Path, repo_id: str, private: bool) -> str:
    """Upload an export to a repository on the hub, which is created if it is not there; return its address.

    Raises:
        UserError: if there is no token, the hub can't be reached, or it refuses.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=True)  # without one it fails before it asks
    try:
        url = api.create_repo(repo_id, private=private or None, exist_ok=True)
        api.upload_folder(repo_id=url.repo_id, folder_path=folder, commit_message="Upload by bertrio export")
    except Exception as error:  # of huggingface_hub, httpx and the system
        reason = " ".join(str(error).split())
        raise UserError(
            f"--push-to-hub {repo_id}: was not uploaded ({reason}); the export lies in {folder}. Check the network, "
            "and that the token of hf auth login, or HF_TOKEN, may write there"
        ) from error
    return str(url)
