#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a model folder to try docs/finetuning.md on without a download: a Qwen2 of a million parameters with random weights,
and a tokenizer of its own, trained on the text. It needs: pip install torch transformers tokenizers

    python3 tiny_model.py FOLDER TEXT...
"""
import sys

try:
    import tokenizers
    import torch
    import transformers
except ModuleNotFoundError as missing:
    sys.exit(f"tiny_model.py: the package {missing.name} is not there: pip install torch transformers tokenizers")

VOCABULARY = 1024
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def make_tokenizer(paths):
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.normalizer = tokenizers.normalizers.NFC()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([  # Qwen2's: transformers takes them for this kind of model
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated"),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train(paths, tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>", pad_token="<|endoftext|>",
                                                chat_template=CHAT)


def main(folder, paths):
    torch.manual_seed(1)
    tokenizer = make_tokenizer(paths)
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"{folder}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
