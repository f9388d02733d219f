"""Endpoints beside the model APIs: tokens, health, metrics, the state of speculation."""
