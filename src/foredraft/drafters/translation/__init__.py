"""Drafts of a model with another tokenizer, translated (Timor et al. 2025, arXiv 2502.05202)."""
