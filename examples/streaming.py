"""Stream two turns of a conversation, marking who proposed each token. The second turn reuses the KV cache.

Run: python examples/streaming.py
"""

from foredraft import Engine, FinishEvent, TokenEvent

messages = [{"role": "user", "content": "Write a short poem about rain."}]

with Engine.load(context_length=2048) as engine:
    for follow_up in ("Repeat the poem, word for word.", None):
        answer = ""
        for event in engine.stream(messages, temperature=0.7, seed=42, max_tokens=100):
            answer += event.text
            if isinstance(event, TokenEvent):
                print(event.text if event.origin == "target" else f"[{event.text}]", end="", flush=True)
            elif isinstance(event, FinishEvent):
                usage = event.usage
                print(f"{event.text}\n-- {usage.prompt_tokens} prompt tokens, {usage.cached_tokens} reused\n")
        if follow_up:
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": follow_up}]
