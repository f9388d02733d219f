"""A process in vLLM's environment that answers prompts with several speculative configurations, one after the
other. A JSON object comes on standard input and one goes to the file that is named; see `main`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
}

CORPUS = """
The quick brown fox jumps over the lazy dog, and then the other dog looks at the fox for a while.
There is more than one way to do it, and there are other ways that one can think of with some thought.
She said that they would come back when the rain was over, but the rain went on through the night.
def add(first, second):
    return first + second
for index in range(10):
    print(index, add(index, index + 1))
{"kind": "question", "parts": [true, false, null], "numbers": [1, 2, 3]}
"""
"""What the tokenizer's merges are learned from."""


def make_tiny(folder: str, vocabulary: int = 384) -> None:
    """A small Llama with random weights, whose greedy text is no single token again and again, and a
    tokenizer of so many tokens: byte-level BPE.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    shape = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    settings = LlamaConfig(
        vocab_size=vocabulary, max_position_embeddings=512, bos_token_id=1, eos_token_id=2, **shape, **heads
    )
    model = LlamaForCausalLM(settings).to(torch.float32)
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.normal_(0, 0.08)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<unk>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(), trainer)
    assert tokenizer.get_vocab_size() == vocabulary
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(
        folder
    )


def sampling(given: dict[str, Any]) -> Any:
    """vLLM's parameters of a request."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if "structured_outputs" in given:
        given = {**given, "structured_outputs": StructuredOutputsParams(**given["structured_outputs"])}
    return SamplingParams(**given)


def answered(llm: Any, task: dict[str, Any]) -> list[Any]:
    """The answer to each prompt. One that is to be aborted is when it has so many tokens."""
    prompts = [it if isinstance(it, str) else {"prompt_token_ids": it} for it in task["prompts"]]
    params = [sampling(its) for its in task["sampling"]]
    limits = task.get("abort", {})
    if not limits:
        return list(llm.generate(prompts, params, use_tqdm=False))
    engine, found = llm.llm_engine, dict[str, Any]()
    for name, (prompt, its) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(str(name), prompt, its)
    while engine.has_unfinished_requests():
        for output in engine.step():
            name = output.request_id
            found[name] = output
            if not output.finished and len(output.outputs[0].token_ids) >= limits.get(name, 1 << 30):
                engine.abort_request([name])
    return [found[str(name)] for name in range(len(prompts))]


def answers(task: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """What came with one configuration, what vLLM counted, and Foredraft's statistics if it drafted in this
    process.
    """
    from vllm import LLM

    try:
        llm = LLM(
            task["model"],
            enforce_eager=True,
            dtype="float32",
            disable_log_stats=False,
            speculative_config=one.get("speculative"),
            additional_config=one.get("additional", {}),
            **task.get("engine", {}),
        )
    except Exception as error:  # noqa: BLE001 - the test reads it
        return {"error": str(error)}
    done = answered(llm, task)
    counted = {it.name: getattr(it, "value", None) for it in llm.get_metrics()}
    found: dict[str, Any] = {
        "texts": [[list(each.token_ids) for each in it.outputs] for it in done],
        "strings": [[each.text for each in it.outputs] for it in done],
        "ends": [[each.finish_reason for each in it.outputs] for it in done],
        "counted": {name: value for name, value in counted.items() if value is not None},
    }
    core: Any = llm.llm_engine
    if task.get("processes"):
        if task["processes"] == "SIGTERM":
            (process,) = core.engine_core.resources.engine_manager.processes
            os.kill(process.pid, signal.SIGTERM)
            process.join()
        return found
    drafter: Any = getattr(core.model_executor.driver_worker.worker.model_runner, "drafter", None)
    if hasattr(drafter, "statistics"):
        from dataclasses import asdict

        found["statistics"] = asdict(drafter.statistics())
    return found


def main() -> None:
    """{"model": folder, "engine": arguments of LLM, "prompts": texts or ids, "sampling": of each, "abort":
    {number of a prompt: after so many tokens}, "processes": "SIGTERM" to compute in processes of vLLM's own,
    the first of which gets that signal in the end, "LLM" to let vLLM end them, "configurations": [{
    "speculative", "additional"}]} in; a list of `answers` out. The model is made if its folder is not there.
    """
    task = json.loads(sys.stdin.read())
    os.environ.update(SETTINGS)
    if task.get("processes"):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    if not Path(task["model"]).exists():
        make_tiny(task["model"])
    found = [answers(task, one) for one in task["configurations"]]
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
