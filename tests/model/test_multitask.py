import pytest
import torch

from bertrio.core.runtime import Runtime, set_up
from bertrio.model.config import ModelConfig
from bertrio.model.encoder import initial_transformer
from bertrio.model.multitask import TaskHeads, build_model, load_heads, load_model, save_heads, save_model
from bertrio.techniques.weighting import Uncertainty


@pytest.fixture
def encoder_folder(default_params, tmp_path):
    torch.manual_seed(0)
    initial_transformer(default_params.encoder, 300).save_pretrained(tmp_path / "start")
    return tmp_path / "start"


def tokens(length=12, rows=4):
    ids = torch.randint(5, 300, (rows, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}


def build(default_params, folder, seed=1, compute=torch.float32):
    set_up(seed, "cpu", "float32")
    return build_model(default_params, folder, Runtime(torch.device("cpu"), compute)).eval()


def test_bf16_agrees_with_float32_within_one_percent_and_hands_out_float32(default_params, encoder_folder):
    exact = build(default_params, encoder_folder)("sst", (tokens(),)).outputs
    rough = build(default_params, encoder_folder, compute=torch.bfloat16)("sst", (tokens(),)).outputs
    assert rough.dtype == torch.float32 and not torch.equal(exact, rough)
    assert (exact - rough).abs().max() < 0.03 * exact.abs().max()


def test_a_saved_model_needs_nothing_beside_it_and_gives_the_same_outputs_again(
    default_params, encoder_folder, tokenizer_folder, tmp_path
):
    model = build(default_params, encoder_folder, seed=1)
    save_model(model, tmp_path / "saved", ModelConfig.from_params(default_params), tokenizer_folder)
    (tmp_path / "saved").rename(tmp_path / "elsewhere")
    again = load_model(tmp_path / "elsewhere", Runtime(torch.device("cpu"), torch.float32))
    for task in model.heads:
        assert torch.equal(model(task, (tokens(),)).outputs, again(task, (tokens(),)).outputs)


def test_loading_heads_leaves_those_that_are_not_in_the_folder(default_params, encoder_folder, tmp_path):
    source, target = build(default_params, encoder_folder, 1), build(default_params, encoder_folder, 2)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    load_heads(target, tmp_path)  # it has none at all
    save_heads(source, ["qqp"], tmp_path)
    load_heads(target, tmp_path)
    assert torch.equal(target.heads["qqp"].output.weight, source.heads["qqp"].output.weight)
    others = [name for name in before if "task_qqp" not in name]
    assert all(torch.equal(target.state_dict()[name], before[name]) for name in others)


def test_a_task_may_be_called_like_an_attribute_of_a_module():
    names = ["keys", "values", "train", "type", "_modules"]
    heads = TaskHeads({name: torch.nn.Linear(2, 1) for name in names})
    assert list(heads) == names and "items" not in heads and len(list(heads.parameters())) == 2 * len(names)
    assert list(Uncertainty(names).log_variances) == names
