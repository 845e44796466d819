import numpy as np
import pandas as pd

from bertrio.data.facts import describe


def table(*rows, texts=("text",)):
    return pd.DataFrame([(f"r{i}", *row) for i, row in enumerate(rows)], columns=["id", *texts, "label"])


def pair_table(*rows):
    return table(*rows, texts=("text_a", "text_b"))


def test_rows_shared_with_train_ignore_order_and_case(tasks, tokenizer):
    splits = {
        "train": pair_table(("a", "b", 1.0), ("c", "d", 0.0)),
        "dev": pair_table((" b", "a", 1.0), ("a", "d", 0.0), ("A ", "x", 0.0), ("x", "y", 1.0)),
        "test": pair_table(("C", "d ", np.nan)),
    }
    facts = describe(splits, tasks["qqp"], tokenizer)
    assert (facts["dev"]["pairs_shared_with_train"], facts["dev"]["rows_sharing_a_sentence_with_train"]) == (1, 3)
    assert (facts["test"]["pairs_shared_with_train"], facts["test"]["rows_sharing_a_sentence_with_train"]) == (1, 1)
    assert "pairs_shared_with_train" not in facts["train"]


def test_label_counts_and_score_summary(tasks, tokenizer):
    def labels(task, train, empty):
        return describe({"train": train, "dev": empty, "test": empty}, tasks[task], tokenizer)["train"]["labels"]

    assert labels("sst", table(("a", 0.0), ("b", 4.0), ("c", 4.0)), table()) == {"0": 1, "4": 2}
    scores = labels("sts", pair_table(("a", "b", 1.0), ("c", "d", 2.0), ("e", "f", 3.0)), pair_table())
    assert (scores["mean"], scores["min"], scores["p50"], scores["max"]) == (2.0, 1.0, 2.0, 3.0)


def test_facts_of_empty_and_unlabelled_splits(tasks, tokenizer):
    splits = {"train": table(("a", 1.0)), "dev": table(("b", np.nan)), "test": table()}
    facts = describe(splits, tasks["sst"], tokenizer)
    assert facts["test"] == {"rows": 0, "rows_sharing_a_sentence_with_train": 0} and "labels" not in facts["dev"]
