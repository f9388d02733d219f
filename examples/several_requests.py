"""Several requests at once share every forward; each gets the text it would get alone.

Run: python examples/several_requests.py
"""

from foredraft import Engine, SamplingParams

PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time,"]

with Engine.load(context_length=1024, sequences=len(PROMPTS), speculate="auto") as engine:
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=48, top_p=0.95)
    together = engine.run([engine.add(prompt, params) for prompt in PROMPTS])
    for prompt, completion in zip(PROMPTS, together, strict=True):
        alone = engine.generate(prompt, params)
        assert alone.tokens == completion.tokens, "the same bytes, alone or beside others"
        print(f"{prompt}{completion.text}\n---")
