"""Architectures of `transformers`, built tiny and without a download: trained two steps with and without `StatsMonitor()`.

For each: weights bit for bit the same, every layer has a row or is named in the warning about modules that were never
called, and no hook is left.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_hooks import StatsMonitor, Watch, assert_no_hooks
from lightning_hooks.rules.patterns import named_modules
from tests.callbacks.models import Memory, ours_on, trainer_of
from tests.conformance._lifecycle_tools import equal_weights

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

VOCABULARY, WIDTH, LENGTH = 60, 16, 12
TEXT = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "pad_token_id": 0}
ATTENTION = {
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT = {**TEXT, "num_attention_heads": 2, "max_position_embeddings": 32}
IMAGE = {"image_size": 16, "patch_size": 8, "num_channels": 3}
VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_labels": 3,
    **IMAGE,
}
PAIR = {"d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
PAIR |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32}
SOUND = {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 3}
SOUND |= {"conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (8, 4), "num_feat_extract_layers": 2}
SOUND |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8, "mask_time_prob": 0.0}


def tokens(seed: int, size: int = VOCABULARY) -> Tensor:
    return torch.randint(3, size, (2, LENGTH), generator=torch.Generator().manual_seed(seed))


def text(seed: int) -> dict[str, Tensor]:
    return {"input_ids": tokens(seed), "labels": tokens(seed)}


def labelled(seed: int) -> dict[str, Tensor]:
    return {"input_ids": tokens(seed), "labels": torch.tensor([0, 1])}


def image(seed: int) -> dict[str, Tensor]:
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
    return {"pixel_values": pixels, "labels": torch.tensor([0, 2])}


def large_image(seed: int) -> dict[str, Tensor]:
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    return {"pixel_values": pixels, "labels": torch.tensor([0, 2])}


def sound(seed: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, 400, generator=torch.Generator().manual_seed(seed)), "labels": torch.tensor([0, 2])}


def spectrum(seed: int) -> dict[str, Tensor]:
    features = torch.randn(2, 8, 40, generator=torch.Generator().manual_seed(seed))
    return {"input_features": features, "labels": tokens(seed)}


def image_and_text(seed: int) -> dict[str, Any]:
    return {**{k: v for k, v in image(seed).items() if k != "labels"}, "input_ids": tokens(seed), "return_loss": True}


Batch = Callable[[int], dict[str, Any]]
ZOO: dict[str, tuple[str, Any, Batch]] = {
    # encoders
    "bert": ("BertForMaskedLM", BERT, text),
    "distilbert": (
        "DistilBertForSequenceClassification",
        {"vocab_size": VOCABULARY, "dim": WIDTH, "hidden_dim": 32, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 32},
        labelled,
    ),
    "albert": ("AlbertForMaskedLM", {**BERT, "embedding_size": 8, "num_hidden_groups": 1}, text),
    "electra": ("ElectraForSequenceClassification", {**BERT, "embedding_size": 8}, labelled),
    "deberta-v2": (
        "DebertaV2ForSequenceClassification",
        {**BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        labelled,
    ),
    "fnet": ("FNetForMaskedLM", BERT, text),
    "modernbert": ("ModernBertForMaskedLM", {**TEXT, **ATTENTION, "cls_token_id": 1, "sep_token_id": 2}, text),
    # decoders
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCABULARY,
            "n_embd": WIDTH,
            "n_layer": 2,
            "n_head": 2,
            "n_positions": 32,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        text,
    ),
    "llama": ("LlamaForCausalLM", {**TEXT, **ATTENTION}, text),
    "gemma2": ("Gemma2ForCausalLM", {**TEXT, **ATTENTION, "head_dim": 8}, text),
    "qwen3": ("Qwen3ForCausalLM", {**TEXT, **ATTENTION, "head_dim": 8}, text),
    "gpt-neox": ("GPTNeoXForCausalLM", {**TEXT, **ATTENTION}, text),
    # encoder and decoder
    "t5": (
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": WIDTH,
            "d_kv": 8,
            "d_ff": 32,
            "num_layers": 2,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
        text,
    ),
    "bart": (
        "BartForConditionalGeneration",
        {**PAIR, "vocab_size": VOCABULARY, "pad_token_id": 0, "decoder_start_token_id": 1},
        text,
    ),
    # vision
    "vit": ("ViTForImageClassification", VISION, image),
    "convnext": (
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "num_labels": 3},
        large_image,
    ),
    "resnet": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 3},
        large_image,
    ),
    "swin": (
        "SwinForImageClassification",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [2, 2],
            "window_size": 4,
            "num_labels": 3,
        },
        large_image,
    ),
    # vision and text
    "clip": (
        "CLIPModel",
        {
            "text_config": {**BERT, "bos_token_id": 1, "eos_token_id": 2},
            "vision_config": {k: v for k, v in VISION.items() if k != "num_labels"},
            "projection_dim": 8,
        },
        image_and_text,
    ),
    # audio
    "wav2vec2": ("Wav2Vec2ForSequenceClassification", SOUND, sound),
    "hubert": ("HubertForSequenceClassification", SOUND, sound),
    "whisper": (
        "WhisperForConditionalGeneration",
        {
            **{k: v for k, v in PAIR.items() if k != "max_position_embeddings"},
            "vocab_size": VOCABULARY,
            "num_mel_bins": 8,
            "max_source_positions": 20,
            "max_target_positions": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        spectrum,
    ),
    # state-space and recurrent
    "mamba": ("MambaForCausalLM", {**TEXT, "state_size": 4, "conv_kernel": 4, "time_step_rank": 4}, text),
    "mamba2": (
        "Mamba2ForCausalLM",
        {**TEXT, "state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
        text,
    ),
    "rwkv": ("RwkvForCausalLM", {**TEXT, "attention_hidden_size": WIDTH, "context_length": 32}, text),
    # mixture of experts
    "mixtral": ("MixtralForCausalLM", {**TEXT, **ATTENTION, "num_local_experts": 4, "num_experts_per_tok": 2}, text),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        {
            **TEXT,
            **ATTENTION,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 8,
        },
        text,
    ),
    "switch": (
        "SwitchTransformersForConditionalGeneration",
        {
            **{"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
            **{"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "decoder_start_token_id": 0},
        },
        text,
    ),
}


class Animal(LightningModule):
    """One model of the zoo."""

    def __init__(self, name: str) -> None:
        super().__init__()
        kind, options, _ = ZOO[name]
        model = getattr(transformers, kind)
        torch.manual_seed(0)
        self.model = model(model.config_class(**options))
        self.model.train()
        self.made: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> Any:
        self.made.append(torch.optim.AdamW(self.parameters(), lr=1e-2))
        return self.made[-1]


def train(root: Path, name: str, *callbacks: Any) -> tuple[Animal, Memory]:
    model, memory = Animal(name), Memory()
    batches = DataLoader([ZOO[name][2](seed) for seed in range(2)], batch_size=None)  # type: ignore[arg-type]
    torch.manual_seed(1)
    trainer_of(root, *callbacks, logger=memory).fit(model, batches)
    assert_no_hooks(model)  # some have hooks of their own
    assert ours_on(model) == 0
    return model, memory


@pytest.mark.parametrize("name", ZOO)
def test_two_steps_of(tmp_path: Path, name: str) -> None:
    plain, _ = train(tmp_path, name)
    # The default rules, written by a user: of modules that are not called, only rules that somebody wrote warn.
    layers_of_all = Watch(modules="*", select="layers", tensors=["output", "output_grad"])
    monitor = StatsMonitor([layers_of_all, Watch(params="*", tensors=["param", "grad", "update"])], max_scalars=100_000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watched, memory = train(tmp_path, name, monitor)
    assert equal_weights(plain, watched)
    assert not equal_weights(plain, Animal(name)), "it was trained"
    assert memory.steps == [0, 1]
    said = [str(w.message) for w in caught if "were not called" in str(w.message)]
    idle = idle_modules(said)
    layers = {target.name for target in named_modules(watched).layers()}
    rows = {tag.partition("/")[2] for _, metrics in memory.ours for tag in metrics if tag.startswith("output_mean/")}
    assert layers - rows == idle
    trained = {n for n, p in watched.named_parameters() if p.requires_grad and p.grad is not None}
    assert {f"update_ratio/{n}" for n in trained} <= set(monitor.latest)


def idle_modules(messages: list[str]) -> set[str]:
    assert len(messages) <= 1, "one warning"
    # A group is `names (class; rules)`, so a semicolon alone does not end it.
    groups = [group for m in messages for group in m.partition("step: ")[2].partition(". Usual")[0].split("); ")]
    return {name for group in groups for name in group.rpartition(" (")[0].split(", ")}


def test_every_kind_of_architecture_is_there() -> None:
    assert len(ZOO) >= 15
