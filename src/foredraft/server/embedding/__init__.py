"""POST /v1/embeddings and /v1/rerank, and the models behind them."""
