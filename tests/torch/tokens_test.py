#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python -m ballast_torch tokens: ids, documents and widths of what it writes against the tokenizer itself, documents
that are cut, mistakes by file and line, and a job that trains on the files."""
import contextlib
import importlib.util
import io
import json
import os
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from torch_store import ROOT, need_torch, scratch, skip  # noqa: E402

need_torch()
from ballast import losses, run_job, write_job  # noqa: E402

from ballast_torch import tokens  # noqa: E402


def read_back(name):
    """[per document [ids]] of a file, and the bytes of a token: not with the writer's code, as docs/data.md has it."""
    with open(f"{name}.idx", "rb") as file:
        index = file.read()
    assert index[:9] == b"MMIDIDX\0\0", index[:9]
    version, kind, sequences, bounds = struct.unpack_from("<QBQQ", index, 9)
    at = 9 + 25
    lengths = struct.unpack_from(f"<{sequences}i", index, at)
    offsets = struct.unpack_from(f"<{sequences}q", index, at + 4 * sequences)
    firsts = struct.unpack_from(f"<{bounds}q", index, at + 12 * sequences)
    assert version == 1 and len(index) == at + 12 * sequences + 8 * bounds, (version, len(index))
    width, letter = {8: (2, "H"), 4: (4, "i")}[kind]
    with open(f"{name}.bin", "rb") as file:
        data = file.read()
    assert list(offsets) == [sum(lengths[:i]) * width for i in range(sequences)]
    parts = [struct.unpack_from(f"<{n}{letter}", data, offset) for n, offset in zip(lengths, offsets)]
    assert firsts[0] == 0 and firsts[-1] == sequences and sum(lengths) * width == len(data)
    return [[i for part in parts[a:b] for i in part] for a, b in zip(firsts, firsts[1:])], width


def call(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = tokens.main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def refused(words, *arguments):
    code, out, err = call(*arguments)
    assert code != 0 and not out and words in err and err.count("\n") == 1, (words, code, out, err)


def write(path, text):
    with open(path, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode())
    return path


def make_tokenizer(path, texts, extra=()):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=600, show_progress=False, special_tokens=["<eod>"],
                                                        initial_alphabet=alphabet))
    made.add_tokens(list(extra))
    made.enable_truncation(8)  # as some files ask for: no token may be lost by it
    made.enable_padding(length=16)
    made.post_processor = processors.ByteLevel(trim_offsets=True)  # as GPT-NeoX's: spaces are left out of offsets
    made.save(path)
    made.post_processor = None
    made.no_truncation()
    made.no_padding()
    return made


def check_ids(folder, made, tokenizer, text):
    files = [write(f"{folder}/{name}.txt", content)
             for name, content in (("a", text), ("b", "naïve 日本\r\n\r\n  x"), ("empty", ""))]
    documents = ["first", "", "zweiter\nmit Zeile", "日" * 50]
    lines = write(f"{folder}/c.jsonl", "\n".join(json.dumps({"text": t, "id": 1}) for t in documents) + "\n\n")
    whole = [text, "naïve 日本\r\n\r\n  x", "", *documents]
    expected = [made.encode(t, add_special_tokens=False).ids for t in whole]
    code, out, err = call("--tokenizer", tokenizer, "--to", f"{folder}/plain", *files, lines)
    assert code == 0 and not err and f"model.vocab is {made.get_vocab_size()} or more" in out, (code, out, err)
    found, width = read_back(f"{folder}/plain")
    assert found == [ids for ids in expected if ids] and width == 2, "documents"
    assert [made.decode(ids, skip_special_tokens=False) for ids in found] == [t for t in whole if t], "texts"
    for eod in ("<eod>", made.token_to_id("<eod>")):
        assert call("--tokenizer", tokenizer, "--to", f"{folder}/eod.idx", "--append-eod", eod, *files, lines)[0] == 0
        ended = [ids + [made.token_to_id("<eod>")] for ids in expected]
        assert read_back(f"{folder}/eod") == (ended, 2), "end of documents"
    print(f"ok ids of {len(whole)} documents, {sum(map(len, found))} tokens")


def check_cut(folder, made, tokenizer, text):
    """Small parts in place of 1 MiB: what is cut has the same ids and is one document."""
    path, part = write(f"{folder}/long.txt", text), tokens.PART
    try:
        for tokens.PART in (1000, 997, 300):
            assert call("--tokenizer", tokenizer, "--to", f"{folder}/long", path)[0] == 0
            found, _ = read_back(f"{folder}/long")
            assert found == [made.encode(text, add_special_tokens=False).ids], f"parts of {tokens.PART}"
        nothing_to_cut = "x" * 5000
        assert call("--tokenizer", tokenizer, "--to", f"{folder}/long", write(path, nothing_to_cut))[0] == 0
        assert made.decode(read_back(f"{folder}/long")[0][0]) == nothing_to_cut
        write(path, "ä" * 500 + "\n" + "日\n" * 50)
        tokens.PART = 1001  # in the middle of a character
        assert call("--tokenizer", tokenizer, "--to", f"{folder}/long", path)[0] == 0
        write(path, b"fine\n" * 300 + b"not \xff fine\n")
        refused(f"{path}, line 301: not UTF-8", "--tokenizer", tokenizer, "--to", f"{folder}/bad", path)
    finally:
        tokens.PART = part
    print("ok documents that are cut")


def check_wide(folder, text):
    """Two bytes as long as all numbers fit."""
    path = write(f"{folder}/w.txt", "a <last> b")
    for vocab, bytes_each in ((65536, 2), (65537, 4)):
        more = [f"<x{i}>" for i in range(vocab - 601)] + ["<last>"]
        made = make_tokenizer(f"{folder}/wide.json", [text], extra=more)
        assert made.get_vocab_size() == vocab, made.get_vocab_size()
        assert call("--tokenizer", f"{folder}/wide.json", "--to", f"{folder}/wide", path)[0] == 0
        found, width = read_back(f"{folder}/wide")
        assert width == bytes_each and vocab - 1 in found[0], (vocab, width, found)
        print(f"ok {vocab} tokens in {width} bytes")


def counted_by_bytes(made, prompt, completion):
    """Which tokens of the two have a byte of the completion: by the bytes of the tokens, not by offsets."""
    first, last, mask, at = len(prompt.encode()), len((prompt + completion).encode()), [], 0
    for token in made.encode(prompt + completion, add_special_tokens=False).tokens:
        end = at + len(token)  # of ByteLevel's letters each is a byte
        mask.append(int(end > first and at < last))
        at = end
    assert at == last
    return mask


def check_masks(folder, made, tokenizer):
    """Prompts have no loss, in any mixture with texts, and a file without them has no mask."""
    pairs = [("What is it?", " A store."), ("Q: ", "A"), ("", "all of it"), ("nothing", ""), ("Wo? ", "日本 ist\n\nweit"),
             ("lice", "nse and License"), ("Wait:   ", "yes   "), ("e", "\u0301 \U0001f468\u200d"), ("\U0001f468", "\u200d \r\n"),
             ("a", "b<eod>")]  # that has its end already
    texts, eod = ["a text", "and another"], made.token_to_id("<eod>")
    lines = write(f"{folder}/pairs.jsonl", "\n".join(
        [json.dumps({"text": texts[0]})] + [json.dumps({"prompt": p, "completion": c}) for p, c in pairs] +
        [json.dumps({"text": texts[1], "prompt": 1})]))
    expected = [[1] * (len(made.encode(texts[0]).ids) + 1)]
    expected += [counted_by_bytes(made, p, c) + [1] for p, c in pairs[:-1]] + [counted_by_bytes(made, *pairs[-1])]
    expected += [[1] * (len(made.encode(texts[1]).ids) + 1)]
    code, out, err = call("--tokenizer", tokenizer, "--to", f"{folder}/pairs", "--append-eod", "<eod>", lines)
    assert code == 0 and not err, err
    with open(f"{folder}/pairs.bin.mask", "rb") as file:
        mask = list(file.read())
    documents, _ = read_back(f"{folder}/pairs")
    assert mask == sum(expected, []) and len(mask) == sum(map(len, documents)), (mask, expected)
    assert f"; {sum(mask)} of them have a loss" in out and 0 < sum(mask) < len(mask), out
    assert documents[2] == made.encode("Q: A", add_special_tokens=False).ids + [eod], "encoded as one text"
    for window in (1, 7, 64):
        code, out, _ = call("--tokenizer", tokenizer, "--to", f"{folder}/padded", "--append-eod", "<eod>", "--pad", window, lines)
        assert code == 0
        padded, _ = read_back(f"{folder}/padded")
        with open(f"{folder}/padded.bin.mask", "rb") as file:
            found = list(file.read())
        wanted = []
        for one, ids, counts in zip(padded, documents, expected):
            assert one == ids + [eod] * (-len(ids) % window)
            wanted += [0] + counts[1:] + [0] * (-len(ids) % window)
        assert found == wanted and len(padded) == len(documents), window
        assert f"or more, model.seq is {window}\n" in out, out
    plain = write(f"{folder}/plain.txt", "no prompt")
    code, out, _ = call("--tokenizer", tokenizer, "--to", f"{folder}/pairs", plain)
    assert code == 0 and "loss" not in out and not os.path.exists(f"{folder}/pairs.bin.mask"), out
    assert call("--tokenizer", tokenizer, "--to", f"{folder}/pairs", "--mask", plain)[0] == 0
    with open(f"{folder}/pairs.bin.mask", "rb") as file:
        assert file.read() == b"\1" * len(made.encode("no prompt").ids)
    print(f"ok masks of {len(pairs)} prompts and completions: {sum(mask)} of {len(mask)} tokens")


def check_mistakes(folder, tokenizer):
    good = write(f"{folder}/good.txt", "fine")
    to = ("--tokenizer", tokenizer, "--to", f"{folder}/bad")
    lines = f"{folder}/bad.jsonl"
    for text, words in (('{"text": "a"}\n{"text"\n', "line 2: no JSON"),
                        ('{"text": "a"}\n\n[1]\n', "line 3: no object"),
                        ('{"text": 7}\n', "line 1: no object"), ('{"txt": "a"}\n', 'with a "text"'),
                        ('{"prompt": "a", "completion": null}\n', "line 1: no object"),
                        ('{"messages": []}\n', "line 1: messages need --model FOLDER"),
                        ('{"prompt": "\\ud83d", "completion": "\\ude00"}\n', "line 1: '\\ud83d' is half a character"),
                        (b'{"text": "\xff"}\n', "line 1: no JSON")):
        write(lines, text)
        refused(f"{lines}, " if "line" in words else lines, *to, good, lines)
        refused(words, *to, good, lines)
    refused(f"{folder}/absent.txt: No such file", *to, good, f"{folder}/absent.txt")
    refused(f"{folder}/none.json: no such file", "--tokenizer", f"{folder}/none.json", "--to", f"{folder}/bad", good)
    refused(f"{good}: no tokenizer.json", "--tokenizer", good, "--to", f"{folder}/bad", good)
    refused("--append-eod: <end> is neither", *to, "--append-eod", "<end>", good)
    refused("--append-eod: 99999 is neither", *to, "--append-eod", "99999", good)
    refused("no tokens: the files are empty", *to, write(f"{folder}/nothing.txt", ""))
    refused("no token has a loss", *to, write(f"{folder}/asked.jsonl", '{"prompt": "a", "completion": ""}'))
    refused("which --pad leaves out", *to, "--pad", 8, write(f"{folder}/one.jsonl", '{"prompt": "", "completion": "a"}'))
    refused("No such file", "--tokenizer", tokenizer, "--to", f"{folder}/nowhere/bad", good)
    for seq in (-1, (1 << 24) + 1):
        with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.suppress(SystemExit):
            tokens.main(["--tokenizer", tokenizer, "--to", f"{folder}/bad", "--pad", str(seq), good])
        assert f"--pad: {seq} is no model.seq" in err.getvalue(), err.getvalue()
    left = [name for name in os.listdir(folder) if name.startswith("bad") and name != "bad.jsonl"]
    assert not left, left
    print("ok mistakes")


def check_without_package(folder):
    kept = sys.modules.pop("tokenizers", None)
    sys.modules["tokenizers"] = None
    refused("pip install tokenizers", "--tokenizer", "x.json", "--to", f"{folder}/x", "x.txt")
    del sys.modules["tokenizers"]
    if kept is not None:
        sys.modules["tokenizers"] = kept


def check_job(folder, made):
    """A job reads the same tokens of it as of the ids alone (nanoGPT's format): losses have the same bits."""
    documents, _ = read_back(f"{folder}/eod")
    with open(f"{folder}/ids.bin", "wb") as file:
        for ids in documents:
            file.write(struct.pack(f"<{len(ids)}H", *ids))
    found = []
    for train, form in ((f"{folder}/eod", "megatron"), (f"{folder}/ids.bin", "bin")):
        job = write_job(folder, pipeline={"stages": 2}, data={"train": [train], "format": form},
                        model={"init": None, "family": "gpt2", "layers": 2, "hidden": 32, "heads": 2, "seq": 32,
                               "vocab": made.get_vocab_size()},
                        train={"steps": 4, "micro_batch": 2, "micro_batches": 4, "lr_schedule": "constant"})
        found.append(losses(run_job(folder, job, "--local")[0]))
    assert len(found[0]) == 4 and found[0] == found[1], found
    print(f"ok a job's losses: {found[0]}")


if __name__ == "__main__":
    with scratch() as folder:
        check_without_package(folder)
        if importlib.util.find_spec("tokenizers") is None:
            skip("there is no package tokenizers in this Python")
        with open(os.path.join(ROOT, "LICENSE")) as file:
            licence = file.read()
        tokenizer = f"{folder}/tokenizer.json"
        made = make_tokenizer(tokenizer, [licence])
        check_ids(folder, made, tokenizer, licence)
        check_cut(folder, made, tokenizer, licence)
        check_wide(folder, licence)
        check_masks(folder, made, tokenizer)
        check_mistakes(folder, tokenizer)
        check_job(folder, made)
