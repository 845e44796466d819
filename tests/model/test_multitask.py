import torch

from bertrio.core.runtime import set_up
from bertrio.model.encoder import initial_transformer
from bertrio.model.multitask import TaskHeads, build_model, load_heads, save_heads
from bertrio.techniques.weighting import Uncertainty


def test_loading_heads_leaves_missing_ones_unchanged(default_params, tmp_path):
    initial_transformer(default_params.encoder, 300).save_pretrained(tmp_path / "start")
    source, target = (build_model(default_params, tmp_path / "start", set_up(seed, "cpu")) for seed in (1, 2))
    before = {name: value.clone() for name, value in target.state_dict().items()}
    load_heads(target, tmp_path)  # the folder has no heads
    save_heads(source, ["qqp"], tmp_path)
    load_heads(target, tmp_path)
    assert torch.equal(target.heads["qqp"].output.weight, source.heads["qqp"].output.weight)
    others = [name for name in before if "task_qqp" not in name]
    assert all(torch.equal(target.state_dict()[name], before[name]) for name in others)


def test_tasks_may_be_named_like_module_attributes():
    names = ["keys", "values", "train", "type", "_modules"]
    heads = TaskHeads({name: torch.nn.Linear(2, 1) for name in names})
    assert list(heads) == names and "items" not in heads and len(list(heads.parameters())) == 2 * len(names)
    assert list(Uncertainty(names).log_variances) == names
