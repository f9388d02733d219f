"""A process in vLLM's environment that answers prompts with several speculative configurations, one after the
other. A JSON object comes on standard input and one goes to the file that is named; see `main`.
"""

from __future__ import annotations

import json
import os
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


def make_tiny(folder: str, vocabulary: int = 384) -> None:
    """A small Llama with random weights, whose greedy text is no single token again and again."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

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


def answers(task: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """The texts with one configuration, what vLLM counted, and Foredraft's statistics if it drafted."""
    from vllm import LLM, SamplingParams

    try:
        llm = LLM(
            task["model"],
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="float32",
            disable_log_stats=False,
            speculative_config=one.get("speculative"),
            additional_config=one.get("additional", {}),
            **task.get("engine", {}),
        )
    except Exception as error:  # noqa: BLE001 - the test reads it
        return {"error": str(error)}
    params = [SamplingParams(detokenize=False, **its) for its in task["sampling"]]
    prompts: Any = [{"prompt_token_ids": prompt} for prompt in task["prompts"]]
    done = llm.generate(prompts, params, use_tqdm=False)
    counted = {it.name: getattr(it, "value", None) for it in llm.get_metrics()}
    found: dict[str, Any] = {
        "texts": [list(it.outputs[0].token_ids) for it in done],
        "counted": {name: value for name, value in counted.items() if value is not None},
    }
    core: Any = llm.llm_engine.model_executor
    drafter: Any = getattr(core.driver_worker.worker.model_runner, "drafter", None)
    if hasattr(drafter, "statistics"):
        from dataclasses import asdict

        found["statistics"] = asdict(drafter.statistics())
    return found


def main() -> None:
    """{"model": folder, "engine": arguments of LLM, "prompts", "sampling": of each, "configurations": [{
    "speculative", "additional"}]} in; a list of `answers` out. The model is made if its folder is not there.
    """
    task = json.loads(sys.stdin.read())
    os.environ.update(SETTINGS)
    if not Path(task["model"]).exists():
        make_tiny(task["model"])
    found = [answers(task, one) for one in task["configurations"]]
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
