"""Tool calling as pure functions over strings: check the request, write the prompt, read the answer.

Reading order: `deltas` (what a parser gives), `dialect` (the seam), `choice` (what a client may ask), then
one file a dialect over the shared `parser` and what reads one call: `readers` an object that names function
and arguments (`hermes`, `llama3`, `mistral`, and over `listed` `phi4`, `granite`, `command`), `headed`
arguments behind a head (`deepseek`, `harmony`), `tagged` arguments between tags (`qwen_coder`, `glm`),
`literals` members in another notation (`gemma`, `pythonic`). `scan`, `arguments` and `values` make JSON of
what is read; `schema`, `tagged_form` and `notation` have what grammars share, and `offered` the grammar of
calls that are left to the model. `detect` picks the dialect by the model's chat template, `history` and
`prompt` write what the template gets.
"""
