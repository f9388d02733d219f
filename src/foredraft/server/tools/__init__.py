"""Tool calling as pure functions on strings: validate the request, write the prompt, parse the answer.

Reading order: `deltas` (the output of a parser), `dialect` (the interface), `choice` (validation of the
request), then one file per dialect over the shared `parser` and a reader of single calls: `readers` for an
object with function and arguments (`hermes`, `llama3`, `mistral`, and over `listed` `phi4`, `granite`,
`command`), `headed` for arguments after a head (`deepseek`, `harmony`), `tagged` for arguments between tags
(`qwen_coder`, `glm`), `literals` for members in another notation (`gemma`, `pythonic`). `scan`, `arguments`
and `values` convert what is read to JSON; `schema`, `tagged_form` and `notation` are shared by grammars, and
`offered` is the grammar of optional calls. `detect` selects the dialect by the model's chat template;
`history` and `prompt` write the template's input.
"""
