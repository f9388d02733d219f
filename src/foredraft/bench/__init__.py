"""Measuring: workloads, live runs, replays of recorded outputs without a model, and reports about them."""
