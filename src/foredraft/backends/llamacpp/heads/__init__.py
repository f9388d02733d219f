"""Trained heads of a GGUF: EAGLE-3 files, and the layers for multi-token prediction of a model's own file."""
