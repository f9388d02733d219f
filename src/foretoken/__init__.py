"""Foretoken: local language models, faster, by speculative decoding that changes nothing in the output."""
