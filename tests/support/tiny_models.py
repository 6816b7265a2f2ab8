"""Models of some kilobytes for the real libraries: of the right kind and shape, filled with random numbers.

What they recognise, write and say means nothing; that the libraries load and run them does.
"""

import json
import re
from pathlib import Path
from typing import Any

SIZE, HEADS, LAYERS = 16, 2, 1
BYTES, PLAIN_TOKENS, TIMESTAMPS = 256, 50_257, 1501
SENTENCES = ["we need a doctor the children are playing in the garden", "necesitamos un médico los niños juegan"] * 4


def tiny_whisper(folder: Path) -> Path:
    """For faster-whisper, with the vocabulary of a multilingual Whisper."""
    from ctranslate2.specs import WhisperSpec

    folder.mkdir(parents=True, exist_ok=True)
    tokens = _whisper_tokens()
    spec = WhisperSpec(LAYERS, HEADS, LAYERS, HEADS)
    _fill(
        spec,
        {"encoder/position_encodings/encodings": 1500, "decoder/position_encodings/encodings": 448},
        len(tokens),
        len(tokens),
    )
    first = tokens.index("<|startoftranscript|>") + 1
    spec.config.lang_ids = list(range(first, tokens.index("<|translate|>")))
    spec.config.suppress_ids, spec.config.suppress_ids_begin, spec.config.alignment_heads = [], [], [[0, 0]]
    spec.register_vocabulary(tokens)
    spec.validate()
    spec.save(str(folder))
    _tokenizer(tokens, folder / "tokenizer.json")
    return folder


def _whisper_tokens() -> list[str]:
    from faster_whisper.tokenizer import _LANGUAGE_CODES

    plain = [chr(0x100 + number) for number in range(BYTES)]
    # The last one is empty, as in the vocabulary of Whisper: without it the library takes the model for English only.
    plain += [*(f"t{number}" for number in range(PLAIN_TOKENS - BYTES - 1)), ""]
    named = ["endoftext", "startoftranscript", *_LANGUAGE_CODES[:99], "translate", "transcribe", "startoflm"]
    named += ["startofprev", "nospeech", "notimestamps", *(f"{at * 0.02:.2f}" for at in range(TIMESTAMPS))]
    return plain + [f"<|{name}|>" for name in named]


def _tokenizer(tokens: list[str], path: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens[PLAIN_TOKENS:]])
    tokenizer.save(str(path))


def tiny_translator(folder: Path, languages: tuple[str, ...] = ()) -> Path:
    """For CTranslate2: like NLLB with a token for each of `languages`, or like OPUS-MT without."""
    from ctranslate2.specs import TransformerSpec

    folder.mkdir(parents=True, exist_ok=True)
    names = ("sentencepiece.bpe.model",) if languages else ("source.spm", "target.spm")
    pieces = _sentencepiece(folder / names[0])
    for name in names[1:]:
        (folder / name).write_bytes((folder / names[0]).read_bytes())
    vocabulary = [*pieces, *languages]
    spec = TransformerSpec.from_config(LAYERS, HEADS)
    _fill(spec, {}, len(vocabulary), len(vocabulary))
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.validate()
    spec.save(str(folder))
    return folder


def _sentencepiece(path: Path) -> list[str]:
    import sentencepiece

    prefix = path.with_name("trained")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(prefix),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    prefix.with_suffix(".vocab").unlink()
    prefix.with_suffix(".model").rename(path)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [processor.id_to_piece(number) for number in range(processor.get_piece_size())]


def _fill(spec: Any, positions: dict[str, int], source: int, target: int) -> None:
    """Give every weight of the specification a random array of the shape that its name implies."""
    import numpy
    from ctranslate2.specs import model_spec

    random = numpy.random.default_rng(7)
    shapes = {
        r".*embeddings(_\d+)?/weight": (source, SIZE),
        r"decoder/projection/weight": (target, SIZE),
        r".*self_attention/linear_0/weight": (3 * SIZE, SIZE),
        r".*attention/linear_1/weight": (SIZE, SIZE),
        r".*attention/linear_[02]/weight": (SIZE, SIZE),
        r".*ffn/linear_0/weight": (4 * SIZE, SIZE),
        r".*ffn/linear_1/weight": (SIZE, 4 * SIZE),
        r".*conv1/weight": (SIZE, 80, 3),
        r".*conv2/weight": (SIZE, SIZE, 3),
    }

    def shape(name: str) -> tuple[int, ...]:
        if name in positions:
            return positions[name], SIZE
        if re.fullmatch(r".*/attention/linear_1/weight", name):  # of another sequence: keys and values in one
            return 2 * SIZE, SIZE
        return next((shape for pattern, shape in shapes.items() if re.fullmatch(pattern, name)), (SIZE,))

    def visit(layer: Any, name: str, value: Any) -> None:
        attribute = name.rpartition("/")[2]
        if value is not None and name not in positions:  # it is set, or may be left out
            return
        wanted = shape(name)
        if attribute == "bias":
            wanted = shape(f"{name.removesuffix('bias')}weight")[:1]
        setattr(layer, attribute, random.normal(0, 0.1, wanted).astype(numpy.float32))

    model_spec.visit_spec(spec, visit)


def tiny_piper(folder: Path, name: str, voice: str) -> Path:
    """For piper-tts: 20 ms of a tone for each phoneme."""
    import onnx
    from onnx import TensorProto, helper

    folder.mkdir(parents=True, exist_ok=True)
    inputs = [
        helper.make_tensor_value_info("input", TensorProto.INT64, [1, None]),
        helper.make_tensor_value_info("input_lengths", TensorProto.INT64, [1]),
        helper.make_tensor_value_info("scales", TensorProto.FLOAT, [3]),
    ]
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 1, 1, None])
    tone = [0.5 if at // 20 % 2 else -0.5 for at in range(320)]
    nodes = [
        helper.make_node("Cast", ["input"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["numbers", "zero"], ["zeros"]),
        helper.make_node("Unsqueeze", ["zeros", "last"], ["column"]),
        helper.make_node("Add", ["column", "tone"], ["samples"]),
        helper.make_node("Reshape", ["samples", "flat"], ["output"]),
    ]
    constants = [
        helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
        helper.make_tensor("last", TensorProto.INT64, [1], [2]),
        helper.make_tensor("tone", TensorProto.FLOAT, [1, 1, 320], tone),
        helper.make_tensor("flat", TensorProto.INT64, [4], [1, 1, 1, -1]),
    ]
    graph = helper.make_graph(nodes, "voice", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    onnx.save(model, str(folder / f"{name}.onnx"))
    phonemes = {
        symbol: [number] for number, symbol in enumerate("_^$ " + "abcdefghijklmnopqrstuvwxyzəɛɪɔʊʌæɐɚˈˌːɑɡŋθðʃʒɹ.,")
    }
    config = {
        "audio": {"sample_rate": 16_000},
        "espeak": {"voice": voice},
        "inference": {"noise_scale": 0.667, "length_scale": 1, "noise_w": 0.8},
        "num_symbols": 256,
        "num_speakers": 1,
        "phoneme_type": "espeak",
        "phoneme_id_map": phonemes,
        "speaker_id_map": {},
    }
    (folder / f"{name}.onnx.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
