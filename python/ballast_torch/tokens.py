# SPDX-License-Identifier: Apache-2.0
"""python -m ballast_torch tokens: text files and the tokenizer of a model to token files of a job, with a mask where not all
tokens have a loss (docs/data.md)."""

from __future__ import annotations

import argparse
import array
import codecs
import contextlib
import json
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, NamedTuple

SEQ_MOST = 1 << 24  # of model.seq
PART = 1 << 20  # bytes of text that are encoded at a time, which takes some hundred MiB
DOCUMENTS = 1024  # the same, of documents
KINDS = ("bin", "idx", "bin.mask")  # of files
_BREAK = re.compile(r"\w(?=\s*\n)")


class Refused(Exception):
    """What is wrong with an argument or a file, with its name and line."""


class Piece(NamedTuple):
    text: str
    ends: bool  # a document ends with it
    spans: list[tuple[int, int]] | None = None  # of characters whose tokens have a loss, in order; None: all have

    @property
    def last_counts(self) -> bool:
        return self.spans is None or (len(self.spans) > 0 and self.spans[-1][1] == len(self.text))


Chat = Callable[[list[Any], Any], Piece]  # lays out the messages of a conversation, and the tools that it may call


# ---- text


def _cut(text: str) -> int:
    """Where a document that is too long to be encoded at once falls apart: before the space that ends a line, behind a
    letter, where tokenizers of words and bytes cut, too; else at the end."""
    at = text.rfind("\n", len(text) // 2)
    while at > 0:
        begin = len(text[:at].rstrip())
        if begin and _BREAK.match(text, begin - 1):
            return begin
        at = text.rfind("\n", len(text) // 2, begin)
    return len(text)


def _text_pieces(path: str, file: BinaryIO) -> Iterator[Piece]:
    """A file that is one document."""
    decode, rest, line = codecs.getincrementaldecoder("utf-8")().decode, "", 1
    while True:
        data = file.read(PART)
        try:
            text = decode(data, final=not data)
        except UnicodeDecodeError as error:
            line += error.object[:error.start].count(b"\n")
            raise Refused(f"{path}, line {line}: not UTF-8: {error.reason}") from None
        line += text.count("\n")
        rest += text
        if not data:
            yield Piece(rest, True)
            return
        if len(rest) >= PART:
            at = _cut(rest)
            yield Piece(rest[:at], False)
            rest = rest[at:]


def _conversation(messages: list[Any], rendered: Callable[[list[Any], bool], str]) -> Piece:
    """Where the assistant's turns are: between a text that asks for one and the text with it."""
    text, spans = rendered(messages, False), []
    for i, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list) and str(content) in text:
            raise Refused(f"the chat template writes the content of message {i + 1} as a list; give it as a string")
        if message["role"] == "assistant":
            if i == 0:
                raise Refused("message 1 is of the assistant: a template has nothing to ask it for; put a message before it, or "
                              'write "prompt" and "completion"')
            before, after = rendered(messages[:i], True), rendered(messages[:i + 1], False)
            if not after.startswith(before) or not text.startswith(after):
                raise Refused(f"the chat template lays out message {i + 1} in another way where more follow, or where it is "
                              'asked for; write "prompt" and "completion"')
            spans.append((len(before), len(after)))
    return Piece(text, True, spans)


def chat_of(folder: str) -> Chat:
    """Lays out messages with the chat template of a model. What the assistant says has a loss, with what ends its turn."""
    tokenizer: Any = None

    def lay_out(messages: list[Any], tools: Any) -> Piece:
        nonlocal tokenizer
        if tokenizer is None:
            try:
                import transformers
            except ImportError:
                raise Refused("messages need the chat template of the model: pip install transformers") from None
            try:
                tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            except Exception as error:  # the package has no type of its own
                raise Refused(f"{folder}: {error}") from None

        def rendered(some: list[Any], asks: bool) -> str:
            return tokenizer.apply_chat_template(some, tools=tools, tokenize=False, add_generation_prompt=asks)

        try:
            return _conversation(messages, rendered)
        except Refused:
            raise
        except Exception as error:  # of the template, or no messages
            raise Refused(f"the chat template of {folder} does not take the messages: {error}") from None

    return lay_out


def _document(record: Any, chat: Chat | None) -> Piece:
    if isinstance(record, dict):
        text, prompt, completion = (record.get(key) for key in ("text", "prompt", "completion"))
        if isinstance(text, str):
            return Piece(text, True)
        if isinstance(prompt, str) and isinstance(completion, str):
            return Piece(prompt + completion, True, [(len(prompt), len(prompt) + len(completion))])
        if isinstance(record.get("messages"), list):
            if chat is None:
                raise Refused("messages need --model FOLDER, whose chat template lays them out")
            return chat(record["messages"], record.get("tools"))
    raise Refused('no object with a "text", with a "prompt" and a "completion", or with "messages"')


def _line_pieces(path: str, file: BinaryIO, chat: Chat | None) -> Iterator[Piece]:
    """A document per line."""
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise Refused(f"{path}, line {number}: no JSON: {error}") from None
        try:
            piece = _document(record, chat)
            piece.text.encode()
        except Refused as refused:
            raise Refused(f"{path}, line {number}: {refused}") from None
        except UnicodeEncodeError as error:  # JSON can have halves of characters
            raise Refused(f"{path}, line {number}: {error.object[error.start]!r} is half a character") from None
        yield piece


def _pieces(paths: Iterable[str], chat: Chat | None) -> Iterator[Piece]:
    for path in paths:
        with open(path, "rb") as file:
            yield from _line_pieces(path, file, chat) if path.endswith(".jsonl") else _text_pieces(path, file)


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= PART or len(batch) == DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# ---- tokens


def _mask(encoding: Any, spans: list[tuple[int, int]] | None) -> bytes:
    """1 for every token with a character in a span. One that has none of its own (as of a character of several tokens in
    some tokenizers) is where it begins."""
    if spans is None:
        return b"\1" * len(encoding.ids)
    mask, at = bytearray(), 0
    for begin, end in encoding.offsets:
        while at < len(spans) and spans[at][1] <= begin:
            at += 1
        mask.append(at < len(spans) and spans[at][0] < max(end, begin + 1))
    return bytes(mask)


class Writer:
    """NAME.bin and NAME.idx of Megatron-LM (lib/formats/megatron.h has the format), and NAME.bin.mask if not every token has
    a loss, or if it is asked for. They are there when finish() returns, and not before; with an error nothing is."""

    def __init__(self, name: str, wide: bool, window: int = 0, filler: int = 0, mask: bool = False) -> None:
        self.name, self.wide, self.tokens, self.counted = name, wide, 0, 0
        self._window, self._filler, self._mask = window, filler, mask
        self._ending = f".{os.getpid()}.part"
        self._lengths, self._bounds = array.array("i"), array.array("q", [0])  # of sequences; of documents
        with contextlib.ExitStack() as opened:
            self._ids = opened.enter_context(open(f"{name}.bin{self._ending}", "wb"))  # noqa: SIM115
            self._masks = opened.enter_context(open(f"{name}.bin.mask{self._ending}", "wb"))  # noqa: SIM115
            opened.pop_all()
        self._open = 0  # sequences of the document that has not ended
        self._begin = 0  # its first token
        self._last = 0  # its last token, if it has one

    @property
    def documents(self) -> int:
        return len(self._bounds) - 1

    @property
    def masked(self) -> bool:
        return self._mask or self.counted < self.tokens

    def add(self, ids: list[int], mask: bytes) -> None:
        """A sequence of the document, and which of its tokens have a loss."""
        if ids:
            if self._window and not self._open:
                mask = b"\0" + mask[1:]  # it would be the last label of the window before
            self._masks.write(mask)
            self.counted += sum(mask)
            values = array.array("i" if self.wide else "H", ids)
            if sys.byteorder == "big":
                values.byteswap()
            self._ids.write(values)
            self._lengths.append(len(ids))
            self.tokens += len(ids)
            self._open += 1
            self._last = ids[-1]

    def end_document(self, eod: int | None, counts: bool) -> None:
        """Appends the token that ends it, where it does not end with that. One without a token is none. With a window it is
        filled up to the end of its last one."""
        if eod is not None and not (self._open and self._last == eod):
            self.add([eod], bytes([counts]))
        if self._open:
            missing = (self._begin - self.tokens) % self._window if self._window else 0
            self.add([self._filler] * missing, bytes(missing))
            self._bounds.append(len(self._lengths))
            self._open, self._begin = 0, self.tokens

    def finish(self) -> None:
        self._ids.close()
        self._masks.close()
        with open(f"{self.name}.idx{self._ending}", "wb") as index:
            index.write(b"MMIDIDX\0\0" +
                        struct.pack("<QBQQ", 1, 4 if self.wide else 8, len(self._lengths), len(self._bounds)))
            self._write(index, self._lengths)
            at = 0
            for first in range(0, len(self._lengths), 1 << 16):
                offsets = array.array("q")
                for length in self._lengths[first:first + (1 << 16)]:
                    offsets.append(at)
                    at += length * (4 if self.wide else 2)
                self._write(index, offsets)
            self._write(index, self._bounds)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.name}.bin.mask")  # first: no moment has it beside other tokens
        for kind in KINDS[:3 if self.masked else 2]:
            os.replace(f"{self.name}.{kind}{self._ending}", f"{self.name}.{kind}")

    def abandon(self) -> None:
        """After finish() it removes what was not needed."""
        self._ids.close()
        self._masks.close()
        for kind in KINDS:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.name}.{kind}{self._ending}")

    @staticmethod
    def _write(index: BinaryIO, values: array.array) -> None:
        if sys.byteorder == "big":
            values = array.array(values.typecode, values)
            values.byteswap()
        index.write(values)


def _json(path: str) -> dict[str, Any]:
    """An object of a file; {} where there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise Refused(f"{path}: no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refused(f"{path}: it is no object")
    return found


def _end_of(folder: str, tokenizer: Any) -> int:
    """The token that ends a document for the model of a folder."""
    config = os.path.join(folder, "config.json")
    found = _json(config).get("eos_token_id")
    if isinstance(found, list) and found:
        found = found[0]
    if isinstance(found, int) and tokenizer.id_to_token(found) is not None:
        return found
    named = _json(os.path.join(folder, "tokenizer_config.json")).get("eos_token")
    text = named.get("content") if isinstance(named, dict) else named
    token = tokenizer.token_to_id(text) if isinstance(text, str) else None
    if token is None:
        raise Refused(f"{config}: no eos_token_id that its tokenizer has, and no eos_token in tokenizer_config.json; name the "
                      "token that ends documents: --append-eod TOKEN, or --no-eod")
    return token


def _vocabulary_of(folder: str) -> int | None:
    config = _json(os.path.join(folder, "config.json"))
    for where in (config, config.get("text_config")):
        if isinstance(where, dict) and isinstance(where.get("vocab_size"), int):
            return where["vocab_size"]
    return None


def _tokenizer(path: str) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise Refused("the package tokenizers is not there: pip install tokenizers") from None
    if os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    if not os.path.exists(path):
        raise Refused(f"{path}: no such file; where a model has a tokenizer of another kind, transformers writes it: "
                      "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")
    try:
        made = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the package has no type of its own
        raise Refused(f"{path}: no tokenizer.json: {error}") from None
    made.no_truncation()  # some files ask for them
    made.no_padding()
    made.post_processor = None  # what it adds is not asked for, and some leave the spaces of a token out of its offsets
    return made


def _eod(tokenizer: Any, wanted: str) -> int:
    """The number of a token, or a token."""
    if wanted.isdecimal():
        token = int(wanted) if tokenizer.id_to_token(int(wanted)) is not None else None
    else:
        token = tokenizer.token_to_id(wanted)
    if token is None:
        raise Refused(f"--append-eod: {wanted} is neither the number of a token nor a token")
    return token


def write(tokenizer: Any, paths: Iterable[str], name: str, eod: int | None = None, vocab: int | None = None,
          chat: Chat | None = None, window: int = 0, mask: bool = False) -> Writer:
    """The tokens of all documents in `paths`, in order, without those that a tokenizer adds (as begin of sentence).

    A file is a document, or in one that ends with .jsonl every line that is not blank: an object with a string `text`, with
    strings `prompt` and `completion`, of which the prompt has no loss, or with `messages` (and `tools`), of which those of
    the assistant have one. The token that ends a document has one if what is before it has.

    Of a file no more than a few MiB are in memory; a file of more than 1 MiB that is a document is cut at an end of a line,
    where tokenizers that put something before each text (as SentencePiece's) put it again.

    Args:
        tokenizer: of the package tokenizers.
        name: of the files without .bin and .idx; those that are there are replaced, when all is well.
        eod: the number of a token to end each document that does not end with it; then an empty document has this one.
        vocab: of the model that reads them: a token that is not below is refused, and so is such an eod.
        chat: lays out `messages` (chat_of); None: they are refused.
        window: the job's model.seq, to fill documents up with tokens without a loss (`eod`, or 0), so that each begins a
            window; 0: they follow each other.
        mask: write NAME.bin.mask also if every token has a loss.

    Returns:
        The writer: `.tokens`, `.counted` (tokens with a loss), `.documents`, `.wide` (tokens have 4 bytes, otherwise 2).

    Raises:
        Refused: what is wrong with a file, with its name and line.
        OSError: a file cannot be read or written.
    """
    if vocab is not None and eod is not None and eod >= vocab:
        raise Refused(f"token {tokenizer.id_to_token(eod)!r} that ends documents has number {eod}, the model's vocab_size is "
                      f"{vocab}; name another: --append-eod TOKEN, or --no-eod")
    writer = Writer(name, max(tokenizer.get_vocab(with_added_tokens=True).values()) > 65535, window, eod or 0,
                    mask)
    fast = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)  # knows no offsets
    try:
        for batch in _batches(_pieces(paths, chat)):
            encode = fast if all(piece.spans is None for piece in batch) else tokenizer.encode_batch
            for encoding, piece in zip(encode([piece.text for piece in batch], add_special_tokens=False), batch):
                if vocab is not None and encoding.ids and max(encoding.ids) >= vocab:
                    raise Refused(f"token {tokenizer.id_to_token(max(encoding.ids))!r} of the text has number "
                                  f"{max(encoding.ids)}, the model's vocab_size is {vocab}: it is not this model's tokenizer")
                writer.add(encoding.ids, _mask(encoding, piece.spans))
                if piece.ends:
                    writer.end_document(eod, piece.last_counts)
        if writer.tokens == 0:
            raise Refused("no tokens: the files are empty")
        if writer.counted == 0:
            raise Refused("no token has a loss: no completion and no message of an assistant has text" +
                          (", or it is the first token of a document, which --pad leaves out" if window else ""))
        writer.finish()
    finally:
        writer.abandon()
    return writer


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ballast_torch tokens", description="Text files to NAME.bin and NAME.idx, the token files of "
        "Megatron-LM, which a job reads: data: {train: NAME, format: megatron}. With prompts or messages also NAME.bin.mask, "
        "by which only completions and what the assistant says have a loss: loss: masked.")
    parser.add_argument("files", nargs="+", metavar="FILE",
                        help='a document each, or .jsonl: per line an object with a "text", with a "prompt" and a "completion", '
                        'or with "messages"')
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--model", metavar="FOLDER",
                       help="of a model: its tokenizer.json; documents end with its eos token, and no token may be "
                       "beyond its vocabulary")
    whose.add_argument("--tokenizer", metavar="tokenizer.json", help="as Hugging Face's models have it")
    parser.add_argument("--to", required=True, metavar="NAME", help="where to write NAME.bin and NAME.idx")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--append-eod", metavar="ID|TOKEN", help="ends every document with this token")
    ends.add_argument("--no-eod", action="store_true", help="with --model: documents have no end")
    parser.add_argument("--pad", type=int, default=0, metavar="SEQ",
                        help="the job's model.seq: documents are filled up with tokens without a loss, so that no training "
                        "sequence holds two")
    parser.add_argument("--mask", action="store_true",
                        help="writes NAME.bin.mask also if every token has a loss: for a job that reads NAME with other files "
                        "that have one")
    options = parser.parse_args(arguments)
    if not 0 <= options.pad <= SEQ_MOST:
        parser.error(f"--pad: {options.pad} is no model.seq, which is from 1 to {SEQ_MOST}")
    name = re.sub(r"\.(bin|idx)$", "", options.to)
    try:
        tokenizer = _tokenizer(options.model or options.tokenizer)
        eod = None if options.append_eod is None else _eod(tokenizer, options.append_eod)
        if options.model and eod is None and not options.no_eod:
            eod = _end_of(options.model, tokenizer)
        vocabulary, chat = (_vocabulary_of(options.model), chat_of(options.model)) if options.model else (None, None)
        written = write(tokenizer, options.files, name, eod, vocabulary, chat, options.pad, options.mask)
    except (Refused, OSError) as error:
        told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
        print(f"ballast_torch: {told}", file=sys.stderr)
        return 2 if isinstance(error, (Refused, FileNotFoundError)) else 3
    vocab = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    ended = "" if eod is None else f" that end with {tokenizer.id_to_token(eod)!r} ({eod})"
    losses = f"; {written.counted:,} of them have a loss" if written.masked else ""
    seq = f"model: {{seq: {options.pad}}}, " if options.pad else ""
    need = (f"; {seq}data: {{format: megatron, train: {name}{', loss: masked' if written.masked else ''}}}" if options.model else
            f"; the job's model.vocab is {vocab} or more{f', model.seq is {options.pad}' if options.pad else ''}")
    print(f"{name}.bin: {written.tokens:,} tokens of {4 if written.wide else 2} bytes in {written.documents:,} "
          f"document{'' if written.documents == 1 else 's'}{ended}{losses}{need}")
    return 0
