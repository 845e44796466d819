import io

from rich.console import Console

from bertrio.experiments.compare import compare
from bertrio.experiments.show import show_comparison
from tests.experiments.test_compare import side


def test_every_metric_is_named_in_full_beside_its_figures(run_of):
    result = compare(side(run_of("a", seed=1)), side(run_of("b", seed=2, skill=1.5)))
    console = Console(width=120, record=True, file=io.StringIO())
    show_comparison(result, console)
    told = console.export_text()
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in told.splitlines() if line.startswith("│")]
    for name, figures in (*result["tasks"].items(), *result["overall"].items()):
        named = name if name == figures["metric"] else f"{name} {figures['metric']}"
        own = [cell for line in lines if line[0] == named for cell in line[1:]]
        assert own[:3] == [f"{figures['first']:.4f}", f"{figures['second']:.4f}", f"{figures['difference']:+.4f}"]
        assert own[-1] == {"first": "A", "second": "B", None: "-"}[figures["better"]]
    assert ["sst balanced_accuracy"] in [line[:1] for line in lines]
    assert "…" not in told
    assert "Overall scores are of qqp, sst, sts." in told
