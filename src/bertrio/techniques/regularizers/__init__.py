"""Regularizers: what is added to the losses so that a model stays smooth, near itself, or small.

`smart`: outputs must not change under small noise on the embeddings. `bregman`: outputs must stay near those of a
moving average of the model. `r_drop`: outputs must not depend on the dropout mask. `distillation`: outputs must say
what a teacher says. `norms`: parameters must stay small.
`divergences` say how far apart two outputs for the same rows are, and `moving_average` keeps averaged weights.

Each gives a number in float32, or one for each of several batches that share a pass; the caller multiplies it by its
strength and adds it to the loss.
"""
