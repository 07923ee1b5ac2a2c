"""Healthy trainings of small models of the library `transformers`, made from configurations. Without it there are none."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Generator, Tensor, nn

from galleries.health.faulty_parts import Learner, adamw, images, loader, tokens
from galleries.health.sound_parts import CHARACTERS, characters
from galleries.health.training import Case, Training

SMALL = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}


class Model(Learner):
    """Learns by the loss that the model computes; `arguments` turns a batch into its arguments."""

    def __init__(self, model: nn.Module, arguments: Callable[[Any], dict[str, Tensor]], rate: float = 2e-3) -> None:
        super().__init__(adamw(rate))
        self.model, self.arguments = model, arguments

    def loss(self, batch: Any) -> Tensor:
        return self.model(**self.arguments(batch)).loss


def _language(batch: Any) -> dict[str, Tensor]:
    return {"input_ids": batch[0], "labels": batch[0]}


def _images(batch: Any) -> dict[str, Tensor]:
    return {"pixel_values": batch[0], "labels": batch[1]}


def _pairs(batch: Any) -> dict[str, Tensor]:
    return {"input_ids": batch[0], "labels": batch[1]}


def bert(seed: int) -> Case:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    model = BertForSequenceClassification(BertConfig(vocab_size=16, max_position_embeddings=32, num_labels=4, **SMALL))
    (sequences,) = tokens(seed)
    counts = torch.stack([(sequences // 4 == kind).sum(1) for kind in range(4)], 1)
    return Case(Model(model.train(), _pairs), loader(sequences, counts.argmax(1), seed=seed), {"gradient_clip_val": 1.0})


def gpt2(seed: int) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=CHARACTERS, n_positions=32, n_embd=48, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)
    module = Model(GPT2LMHeadModel(config).train(), _language)
    return Case(module, loader(characters(seed, 32), seed=seed, batch=16), {"gradient_clip_val": 1.0})


def llama(seed: int) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=CHARACTERS, max_position_embeddings=32, num_key_value_heads=2, **SMALL)
    module = Model(LlamaForCausalLM(config).train(), _language)
    return Case(module, loader(characters(seed, 32), seed=seed, batch=16), {"gradient_clip_val": 1.0})


def vit(seed: int) -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **SMALL))
    return Case(Model(model.train(), _images), loader(*images(), seed=seed))


def t5(seed: int) -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=20, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, pad_token_id=18, decoder_start_token_id=18
    )
    source = torch.randint(16, (2048, 8), generator=Generator().manual_seed(seed))
    module = Model(T5ForConditionalGeneration(config).train(), _pairs, 5e-3)
    return Case(module, loader(source, source.sort(1).values, seed=seed))


def mixtral(seed: int) -> Case:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(seed)
    experts = {"num_local_experts": 4, "output_router_logits": True}
    config = MixtralConfig(vocab_size=16, max_position_embeddings=32, num_key_value_heads=2, **experts, **SMALL)
    module = Model(MixtralForCausalLM(config).train(), _language)
    return Case(module, loader(*tokens(seed), seed=seed, batch=16), {"gradient_clip_val": 1.0})


MODELS = [
    Training("bert", "library", bert, 250, "set", None, "BERT names the most frequent kind of tokens."),
    Training("gpt2", "library", gpt2, 250, "held", None, "GPT-2 predicts characters; its embedding is its head."),
    Training("llama", "library", llama, 250, "set", None, "Llama predicts characters."),
    Training("vit", "library", vit, 200, "held", None, "ViT classifies digits."),
    Training("t5", "library", t5, 250, "set", None, "T5 sorts tokens."),
    Training("mixtral", "library", mixtral, 200, "held", None, "Mixtral predicts tokens with four experts."),
]
TRAININGS = MODELS if find_spec("transformers") else []
