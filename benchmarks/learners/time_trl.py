"""TRL's GRPO loss with its defaults (DAPO's), timed on logits that stand in for a model's."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import torch
from datasets import Dataset
from losses import ADVANTAGE_SEED, EPISODES, STEPS, TOKENS, measure_loss
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import selective_log_softmax_and_entropy
from watching import answer, read_settings

PROMPT = 1  # tokens


class Given(torch.nn.Module):
    """Gives logits that were made beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = torch.empty(0)

    def forward(self, **inputs: Any) -> Any:
        """What TRL makes of them for the completion, by its own function for logits."""
        chosen = inputs["input_ids"][:, PROMPT:]
        found = selective_log_softmax_and_entropy(self.logits, chosen, entropy_requires_grad=False)
        return SimpleNamespace(log_probs=found[0], entropy=found[1])


def make_trainer() -> GRPOTrainer:
    """A trainer of the smallest model there is: only its loss is used."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<pad>": 1, "<unk>": 2}, unk_token="<unk>"))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<pad>")
    fast.chat_template = "{{ messages }}"
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    return GRPOTrainer(
        model=LlamaForCausalLM(config),
        reward_funcs=lambda completions, **more: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir="trl",
            use_cpu=True,
            report_to=[],
            epsilon_high=0.28,
            max_completion_length=STEPS,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a"] * 16}),
        processing_class=fast,
    )


def main() -> None:
    """Time the loss and its gradient."""
    trainer, given = make_trainer(), Given()
    trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation
    ones = torch.ones(EPISODES, STEPS, dtype=torch.long)

    def loss(logits: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        given.logits = logits
        found: torch.Tensor = trainer._compute_loss(
            given,
            {
                "prompt_ids": ones[:, :PROMPT],
                "prompt_mask": ones[:, :PROMPT],
                "completion_ids": inputs["chosen"],
                "completion_mask": ones,
                "advantages": inputs["advantages"],
                "old_per_token_logps": inputs["old"],
                "num_items_in_batch": ones.sum(),
            },
        )
        return found

    answer(**measure_loss(loss, read_settings()["seconds"], ADVANTAGE_SEED))


if __name__ == "__main__":
    main()
