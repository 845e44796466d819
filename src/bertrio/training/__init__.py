"""Training: objective, optimizer, loop and checkpoints, and the stages that use them."""
