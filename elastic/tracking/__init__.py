"""Tracking: a run's curves in TensorBoard, Weights & Biases or MLflow, with samples as the x axis."""
