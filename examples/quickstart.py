"""Generate one answer and look at what speculation did. Run: python examples/quickstart.py"""

from foredraft import Engine

with Engine.load(context_length=2048) as engine:
    answer = engine.generate(
        [{"role": "user", "content": "List the days of the week, one per line. Then list them again."}],
        max_tokens=120,
    )
    print(answer.text)
    print(f"\n{answer.timings.predicted_per_second:.0f} tokens/s, finished: {answer.finish_reason}")
    speculation = answer.speculation
    if speculation.active:
        print(f"acceptance {speculation.acceptance_rate}, {speculation.acceptance_length} tokens a round")
    else:
        print(f"nothing was drafted: {speculation.reason}")
    print(f"exact: {speculation.exact} ({speculation.exact_reason})")
