"""Samples with images, videos and sounds for ROLL's multimodal collator.

Each medium is a small tensor with unique numbers. The stand-in processor returns these tensors as features, so that a
medium of another row, or in another place, is detected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.binding import kit
from sentinel.binding.kit import torch

#: Medium -> the feature into which the processor converts it.
FEATURES = {"image": "pixel_values", "video": "pixel_values_videos", "audio": "input_features"}
_KINDS = ("image", "video", "audio", "track")
#: Form of the samples -> the name of the processor's class, which ROLL reads.
_CLASSES = {"media": "Processor", "files": "Qwen3VLProcessor", "sound": "Qwen3OmniProcessor"}
_OPENING, _CLOSING = "[", "]"
_TOKENS = {kind: f"{{{kind}}}" for kind in FEATURES}


class Features(dict[str, Any]):
    """A stand-in for a processor's result: a dictionary with the method that ROLL's collator calls."""

    def __init__(self, data: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(data or {}, **more)

    def convert_to_tensors(self, tensor_type: str | None = None) -> None:
        for name, value in self.items():
            self[name] = torch.as_tensor(value)


def as_ids(text: str) -> list[int]:
    """Return the token ids of a text. Each letter is a token."""
    return [ord(letter) for letter in text]


def media_of(row: int, form: str) -> dict[str, list[Any]]:
    """Return the media of a row: medium -> tensors. ``track`` is the sound of the row's video.

    Rows have different media, because a batch may mix them. Each row with a sound also has a video if the videos have
    tracks, because only such rows join both.
    """
    counts = {"image": (2, 1, 0)[row % 3], "video": (1, 0, 1)[row % 3], "audio": (0, 1, 1)[row % 3], "track": 0}
    if form == "sound":
        counts |= {"video": 1, "track": 1}
    return {
        kind: [torch.tensor([100.0 * row + 10 * place + number, 0.5]) for number in range(counts[kind])]
        for place, kind in enumerate(_KINDS)
    }


def prompt_of(text: str, row: int, form: str) -> str:
    """Return the text that the processor must receive: a token for each kind of medium follows the sample's text."""
    placed = "".join(_TOKENS[kind] for kind in ("video", "audio", "image") if media_of(row, form)[kind])
    written = text + placed
    return f"{_OPENING}{written}{_CLOSING}" if form == "files" else written


class Loader:
    """Loads media by their paths, with the options for the processor that belong to each of them."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._files: dict[str, Any] = {}

    def feature(self, text: str, row: int) -> dict[str, Any]:
        """Return a sample as the dataset contains it."""
        media = media_of(row, self._form)
        names = {kind: [f"{kind}-{row}-{place}" for place, _ in enumerate(own)] for kind, own in media.items()}
        folder = "folder/" if self._form == "files" else ""
        for kind in FEATURES:
            self._files |= {folder + name: medium for name, medium in zip(names[kind], media[kind])}
        self._files |= {f"track of {name}": track for name, track in zip(names["video"], media["track"])}
        made = {kind: names[kind] or None for kind in FEATURES} | {
            "video": names["video"][0] if media["video"] else None
        }
        prompt = prompt_of(text, row, self._form)
        if self._form == "files":
            prompt = prompt[1:-1].replace("{", "<").replace("}", ">")
        return {**made, "prompt": [{"content": prompt}] if self._form == "files" and row % 2 else prompt, "row": row}

    def load(self, names: Sequence[str], metas: Any, is_video: bool = False, **_: Any) -> tuple[list[Any], list[Any]]:
        missing = torch.full((2,), -1.0)
        paths = [f"track of {name}" if is_video else name for name in names]
        media = [self._files.get(path, missing) for path in paths]
        # Only videos have options. Options of sounds would replace those of the videos of the same row.
        videos = [not is_video and "video-" in path for path in paths]
        return media, [
            {"fps": 2.0, "video_metadata": f"meta of {path}"} if video else {} for video, path in zip(videos, paths)
        ]


class _Processor:
    image_processor = kit.stand_in(patch_size=1)
    audio_token, video_token = _TOKENS["audio"], _TOKENS["video"]

    def __call__(
        self, text: str, images: Any = None, videos: Any = None, audio: Any = None, **options: Any
    ) -> dict[str, Any]:
        made = {"input_ids": [as_ids(text)], "attention_mask": [[1] * len(text)], "position_ids": [[0] * len(text)]}
        given = {"image": images, "video": videos, "audio": audio}
        features = {FEATURES[kind]: torch.stack(own) for kind, own in given.items() if own is not None}
        return {**made, **features}

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        return f"{_OPENING}{messages[0]['content']}{_CLOSING}"


def processor_of(form: str) -> Any:
    """Return a processor whose class has the name of the model's processor in this form."""
    return type(_CLASSES[form], (_Processor,), {})()


def options_of(form: str) -> dict[str, Any]:
    """Return the options with which the collator is constructed."""
    if form == "files":
        folders = {f"{kind}_folder": "folder" for kind in FEATURES}
        tokens = {f"{kind}_token": token for kind, token in _TOKENS.items()}
        marks = {f"{kind}_placeholder": f"<{kind}>" for kind in FEATURES}
        return {**folders, **tokens, **marks, "is_template_applied": False}
    if form == "sound":
        return {"use_audio_in_video": True, "processor_mm_kwargs": {"fps": None}}
    given = {"use_audio_in_video": True, "fps": None}
    provider = {"extra_data_provider": _counted_features, "extra_unpadded_keys": ["row"]}
    return {**provider, "mm_feature_dtype": "fp16", "processor_mm_kwargs": given}


def _counted_features(input_ids: Any, pixel_values: Any = None, other: int = 7) -> dict[str, Any]:
    """Return a further column, from all images of a batch."""
    total = 0.0 if pixel_values is None else float(pixel_values.double().sum())
    return {"of_images": torch.full((len(input_ids),), total + other)}


def is_right(batch: Mapping[str, Any], row: int, rows: int, text: str, form: str) -> bool:
    """Return True if the media of a collated row are those of its sample."""
    media, engine = media_of(row, form), batch["multi_modal_data"][row]
    sounds = media["track"] + media["audio"]
    wanted = {"image": media["image"], "video": media["video"], "audio": sounds}
    dtype = torch.float16 if form == "media" else torch.float32
    features = {FEATURES[kind]: torch.stack(own).to(dtype) for kind, own in wanted.items() if own}
    if not _are_equal(batch["multi_modal_inputs"][row], features):
        return False
    if engine["prompt_token_ids"] != as_ids(prompt_of(text, row, form)):
        return False
    seen = dict(engine.get("multi_modal_data", {}))
    if form == "files" and "video" in seen:
        seen["video"], metas = zip(*seen["video"])
        if list(metas) != [f"meta of folder/video-{row}-0"]:
            return False
    if not _are_equal(
        {k: torch.stack(list(v)) for k, v in seen.items()}, {k: torch.stack(v) for k, v in wanted.items() if v}
    ):
        return False
    total = sum(float(image.sum()) for each in range(rows) for image in media_of(each, form)["image"])
    return form != "media" or (batch["row"][row] == row and batch["of_images"][row] == total + 7)


def _are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    same = {name: name in one and one[name].dtype == own.dtype for name, own in other.items()}
    return set(one) == set(other) and all(same.values()) and all(torch.equal(one[name], other[name]) for name in one)
