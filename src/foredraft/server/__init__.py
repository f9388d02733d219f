"""The HTTP server: OpenAI's and Anthropic's APIs for several clients at once."""
