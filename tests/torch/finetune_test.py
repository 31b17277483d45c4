#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole way of docs/finetuning.md: a model folder, text to its tokens, a run with a held-out loss, and a checkpoint that
transformers opens with its tokenizer and chat template: the same held-out loss, text that ends, no key missing. Then
conversations: what the assistant says has a loss, which transformers computes to the same number."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_store import ROOT, need_torch, scratch, skip  # noqa: E402

need_torch()
from ballast import CTL, environment  # noqa: E402

for package in ("transformers", "tokenizers"):
    if importlib.util.find_spec(package) is None:
        skip(f"there is no package {package} in this Python")

import torch  # noqa: E402
import transformers  # noqa: E402
from tokens_test import read_back, refused, write  # noqa: E402

from ballast_torch import tokens  # noqa: E402

SEQ, STEPS = 64, 30


def make_model(folder, text):
    made = subprocess.run([sys.executable, "-B", f"{ROOT}/examples/tiny_model.py", f"{folder}/model", text],
                          capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return f"{folder}/model"


def to_tokens(folder, model, text):
    documents = [part for part in text.split("\n\n") if part.strip()]
    lines = write(f"{folder}/text.jsonl", "\n".join(json.dumps({"text": part}) for part in documents) + "\n")
    assert tokens.main(["--model", model, "--to", f"{folder}/text", lines]) == 0
    found, width = read_back(f"{folder}/text")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    expected = [tokenizer(part, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] for part in documents]
    assert found == expected and width == 2, "ids of the tokenizer, each document ended by eos"
    assert tokens.main(["--model", model, "--no-eod", "--to", f"{folder}/plain", lines]) == 0
    assert read_back(f"{folder}/plain")[0] == [ids[:-1] for ids in expected if len(ids) > 1]
    print(f"ok {len(documents)} documents, {sum(map(len, found))} tokens")


def mistakes(folder, model):
    other = f"{folder}/other"
    shutil.copytree(model, other)
    config = json.load(open(f"{other}/config.json"))
    good = write(f"{folder}/good.txt", "a text of some words")
    for change, words in (({"vocab_size": 40}, "the model's vocab_size is 40: it is not this model's tokenizer"),
                          ({"eos_token_id": 70000}, None), ({"eos_token_id": [0, 1]}, None)):
        with open(f"{other}/config.json", "w") as file:
            json.dump({**config, **change}, file)
        if words is not None:
            refused(words, "--model", other, "--to", f"{folder}/bad", good)
        else:  # the first of a list; where config.json says none that there is, tokenizer_config.json
            assert tokens.main(["--model", other, "--to", f"{folder}/ends", good]) == 0
            assert read_back(f"{folder}/ends")[0][0][-1] == 0
    last = max(transformers.AutoTokenizer.from_pretrained(model).get_vocab().values())
    with open(f"{other}/config.json", "w") as file:
        json.dump({**config, "vocab_size": last}, file)
    refused(f"that ends documents has number {last}, the model's vocab_size is {last}", "--model", other, "--to",
            f"{folder}/bad", "--append-eod", str(last), good)
    os.remove(f"{other}/tokenizer_config.json")
    with open(f"{other}/config.json", "w") as file:
        json.dump({**config, "eos_token_id": None}, file)
    refused("--append-eod TOKEN, or --no-eod", "--model", other, "--to", f"{folder}/bad", good)
    os.remove(f"{other}/tokenizer.json")
    refused(f"{other}/tokenizer.json: no such file", "--model", other, "--to", f"{folder}/bad", good)
    print("ok mistakes")


def train(folder, *sets):
    shutil.copy(f"{ROOT}/examples/finetune.yaml", f"{folder}/job.yaml")
    report = f"{folder}/report.jsonl"
    words = [word for one in (f"model.seq={SEQ}", "train.lr=2e-3", "train.validate_every=10", *sets) for word in ("--set", one)]
    done = subprocess.run([CTL, "run", f"{folder}/job.yaml", "--local", "--steps", str(STEPS), "--report", report, *words],
                          env=environment(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(report) as file:
        events = [json.loads(line) for line in file]
    held_out = [event["loss"] for event in events if event["event"] == "validation"]
    assert len(held_out) == 3 and held_out[0] > held_out[-1], held_out
    return f"{folder}/tuned/step-{STEPS:06}", held_out[-1]


def held_out_of(name, model, mask=None):
    """The loss of the windows that the run held out: a tenth of the tokens, cut at the start of a document. With a mask, of
    what counts."""
    documents, _ = read_back(name)
    ids = [i for document in documents for i in document]
    cut, at = len(ids) - int(0.1 * len(ids)), 0
    for document in documents:
        if at + len(document) > cut:
            break
        at += len(document)
    labels = ids if mask is None else [i if counts else -100 for i, counts in zip(ids, mask)]
    starts = range(at, len(ids) - SEQ, SEQ)
    rows, wanted = (torch.tensor([of[i:i + SEQ + 1] for i in starts]) for of in (ids, labels))
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).double(), wanted[:, 1:].reshape(-1)).item()


def serve(folder, checkpoint, held_out):
    model, said = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, output_loading_info=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    assert not said["unexpected_keys"] and set(said["missing_keys"]) <= {"lm_head.weight"}, said
    assert model.config.max_position_embeddings == 512 and model.generation_config.eos_token_id == tokenizer.eos_token_id
    found = held_out_of(f"{folder}/text", model.eval())
    assert abs(found - held_out) < 1e-5 * held_out, f"transformers has {found}, the run said {held_out}"
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "What is a store?"}], add_generation_prompt=True,
                                           return_tensors="pt", return_dict=True)
    text = tokenizer.decode(prompt["input_ids"][0])
    assert text == "<|im_start|>user\nWhat is a store?<|im_end|>\n<|im_start|>assistant\n", text
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert answer.shape[1] > prompt["input_ids"].shape[1]
    with torch.no_grad():  # a model that says eos next is not asked for more
        model.model.norm.weight.zero_()
        stopped = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert stopped.shape[1] == prompt["input_ids"].shape[1] + 1 and stopped[0, -1] == tokenizer.eos_token_id, stopped
    print(f"ok held-out loss {held_out:.6f}, of transformers {found:.6f}; a template, and text that ends")


# As tiny_model.py's, with the tags by which transformers itself tells what the assistant says.
TAGGED = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.role == 'assistant' %}{% generation %}"
          "{{ message.content }}<|im_end|>\n{% endgeneration %}{% else %}{{ message.content }}<|im_end|>\n{% endif %}{% endfor %}")


def masks_of(documents, mask):
    at = 0
    for ids in documents:
        yield mask[at:at + len(ids)]
        at += len(ids)


def conversations(folder, model, text):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    parts = [part for part in text.split("\n\n") if part.strip()]
    talks = [[{"role": "user", "content": a}, {"role": "assistant", "content": b}, {"role": "user", "content": "And then? 日"},
              {"role": "assistant", "content": c}][:2 + 2 * (i % 2)]
             for i, (a, b, c) in enumerate(zip(parts[::3], parts[1::3], parts[2::3]))]
    lines = write(f"{folder}/talks.jsonl", "\n".join(json.dumps({"messages": talk}) for talk in talks) + "\n")
    assert tokens.main(["--model", model, "--to", f"{folder}/talks", lines]) == 0
    documents, _ = read_back(f"{folder}/talks")
    with open(f"{folder}/talks.bin.mask", "rb") as file:
        mask = list(file.read())
    expected = []
    for talk, ids in zip(talks, documents):
        told = tokenizer.apply_chat_template(talk, chat_template=TAGGED, tokenize=True, return_dict=True,
                                             return_assistant_tokens_mask=True)
        assert ids == told["input_ids"] + [tokenizer.eos_token_id]
        expected += told["assistant_masks"] + [1]
    assert len(documents) == len(talks) > 10 and mask == expected, "what the assistant says, and the end"
    checkpoint, held_out = train(folder, f"data.train={folder}/talks", "data.loss=masked", f"checkpoint.folder={folder}/talked")
    served = transformers.AutoModelForCausalLM.from_pretrained(checkpoint.replace("tuned", "talked"))
    found, all_of_it = (held_out_of(f"{folder}/talks", served.eval(), of) for of in (mask, None))
    assert abs(found - held_out) < 1e-5 * held_out, f"transformers has {found}, the run said {held_out}"
    assert abs(all_of_it - held_out) > 1e-3
    print(f"ok {len(talks)} conversations: held-out loss {held_out:.6f}, of transformers {found:.6f}, of all tokens "
          f"{all_of_it:.6f}")

    assert tokens.main(["--model", model, "--to", f"{folder}/padded", "--pad", str(SEQ), lines]) == 0
    checkpoint, held_out = train(folder, f"data.train={folder}/padded", "data.loss=masked",
                                 f"checkpoint.folder={folder}/alone")
    served = transformers.AutoModelForCausalLM.from_pretrained(checkpoint.replace("tuned", "alone")).eval()
    padded, _ = read_back(f"{folder}/padded")
    cut, at, total, count = sum(map(len, padded)) - int(0.1 * sum(map(len, padded))), 0, 0, 0
    for one, ids, counts in zip(padded, documents, masks_of(documents, mask)):
        if at + len(one) > cut:  # held out: each document alone, in sequences of SEQ
            for first in range(0, len(ids), SEQ):
                if at + first + SEQ == sum(map(len, padded)):
                    break  # the last window has no token after it for its last label: it is none
                rows, labels = ids[first:first + SEQ + 1], counts[first:first + SEQ + 1]
                if len(rows) > 1 and sum(labels[1:]):
                    with torch.no_grad():
                        logits = served(torch.tensor([rows[:-1]])).logits[0].double()
                    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(rows[1:]), reduction="none")
                    total, count = total + losses[torch.tensor(labels[1:]) == 1].sum().item(), count + sum(labels[1:])
        at += len(one)
    assert abs(total / count - held_out) < 1e-5 * held_out, f"transformers has {total / count}, the run said {held_out}"
    print(f"ok documents alone: held-out loss {held_out:.6f}, of transformers {total / count:.6f}")

    strict = f"{folder}/strict"
    shutil.copytree(model, strict)
    changed = transformers.AutoTokenizer.from_pretrained(strict)
    changed.chat_template = "{% for m in messages %}{% if loop.last %}Last: {% endif %}{{ m.content }}\n{% endfor %}"
    changed.save_pretrained(strict)
    refused("talks.jsonl, line 1: the chat template lays out message 2 in another way", "--model", strict, "--to",
            f"{folder}/bad", lines)
    changed.chat_template = ("{{ tools | tojson if tools else '' }}{% for m in messages %}{% if m.role == 'assistant' %}"
                             "{{ m.content }}{{ eos_token }}{% else %}[{{ m.content }}]{% endif %}{% endfor %}")
    changed.save_pretrained(strict)
    talk = {"messages": [{"role": "user", "content": "What time is it?"}, {"role": "assistant", "content": "late"}],
            "tools": [{"name": "clock"}]}
    called = write(f"{folder}/called.jsonl", json.dumps(talk) + "\n")
    assert tokens.main(["--model", strict, "--to", f"{folder}/called", called]) == 0
    end = tokenizer.eos_token
    assert [changed.decode(ids) for ids in read_back(f"{folder}/called")[0]] == [
        f'[{{"name": "clock"}}][What time is it?]late{end}'], "with its tools, and ended once"
    asks, says = ({"role": role, "content": "a text"} for role in ("user", "assistant"))
    listed = {"role": "user", "content": [{"type": "text", "text": "a text"}]}
    for talk, words in (([says, asks, says], "line 1: message 1 is of the assistant: a template has nothing to ask it for"),
                        ([asks, says, listed, says], "line 1: the chat template writes the content of message 3 as a list")):
        refused(words, "--model", model, "--to", f"{folder}/bad", write(lines, json.dumps({"messages": talk})))
    refused("talks.jsonl, line 1: the chat template of", "--model", model, "--to", f"{folder}/bad",
            write(lines, json.dumps({"messages": [{"content": "no role"}]})))


def main():
    with scratch() as folder:
        with open(f"{ROOT}/docs/operations.md") as one, open(f"{ROOT}/docs/checkpoints.md") as other:
            text = one.read() + other.read()
        model = make_model(folder, write(f"{folder}/text.txt", text))
        to_tokens(folder, model, text)
        mistakes(folder, model)
        checkpoint, held_out = train(folder)
        serve(folder, checkpoint, held_out)
        conversations(folder, model, text)


main()
