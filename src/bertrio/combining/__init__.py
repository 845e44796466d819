"""How the losses of several tasks become one update: weights on the losses, surgery on the gradients."""
