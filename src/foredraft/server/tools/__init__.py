"""Tool calling as pure functions over strings: check the request, write the prompt, read the answer.

Reading order: `deltas` (what a parser gives), `dialect` (the seam), `choice` (what a client may ask), then
one file a dialect (`hermes`, `llama3`, `mistral`) over the shared `parser`, `readers` and `scan`, and over
`schema` for what their grammars share; `offered` makes the grammar of calls that are left to the model,
`detect` picks the dialect by the model's chat template, `history` and `prompt` write what the template gets.
"""
