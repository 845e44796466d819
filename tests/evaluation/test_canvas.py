import pytest

from bertrio.evaluation.canvas import picture, titled


@pytest.mark.parametrize("width", [4.0, 7.6, 11.0])
def test_a_note_ends_within_the_picture_and_below_the_axes(tmp_path, width):
    under = (
        "grey: the paper, bert-base-uncased on its data; blue: budget quick, cs224n, all-MiniLM-L6-v2; lines: one, two "
        * 2
    )
    with picture(tmp_path / "a.png", (width, 4.0)) as figure:
        axes = figure.add_subplot()
        axes.set_title("metric")
        titled(figure, "A headline", under)
        figure.draw_without_rendering()
        text = figure._supxlabel
        assert text.get_window_extent().x1 < figure.bbox.x1
        assert axes.get_tightbbox().y0 > text.get_window_extent().y1
        assert " ".join(text.get_text().split()) == " ".join(under.split())
