"""What transformers computes with the real model, and the prompts on which the engine is compared with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

TIE = 1e-4
"""Where the reference's two best logits are no further apart, either token is right."""

PROMPTS = (
    "What is gravity?",
    "Hello!",
    "Who are you?",
    "Name three colors.",
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Explain photosynthesis to a child.",
    "Count from 1 to 20.",
    "Translate to French: good morning.",
    "Write a Python function that adds two numbers.",
    "What is 12 times 12?",
    "List the planets of the solar system.",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Tell me a joke about cats.",
    "Summarize Romeo and Juliet in one sentence.",
    "What does HTTP stand for?",
    "Write an email that declines an invitation.",
    "How do airplanes fly?",
    "What is the difference between a list and a tuple?",
    "Describe the taste of a lemon.",
    "Who wrote Hamlet?",
    "Give me five names for a dog.",
    "What is the boiling point of water in Fahrenheit?",
    "Fix the grammar: she go to school yesterday.",
    "Write a limerick about a sailor.",
    "What are prime numbers?",
    "Explain recursion.",
    "How many legs does a spider have?",
    "Write SQL that counts the users of each country.",
    "What is the largest ocean?",
    "Suggest a title for a story about a lost key.",
    "Is a tomato a fruit?",
    "What happened in 1969?",
    "Write a JSON object with a name and an age.",
    "What is love?",
    "Describe a sunset in two sentences.",
    "What is the plural of mouse?",
    "Continue: once upon a time, in a land far away,",
    "Repeat the word banana ten times. " + "And then say why you like bananas. " * 12,
    "你好!你是谁?",
    "用中文写一句关于春天的话。",
    "请把“谢谢”翻译成英语。",
    "北京是哪个国家的首都?",
    "Write 'good morning' in Chinese characters.",
    "😀😃😄 What do these mean?",
    "Reply with five emoji.",
    "Repeat after me: 👩‍👩‍👧 🇨🇳 👍🏽 é 한국어",
    "Wie heißt die Hauptstadt von Österreich?",
    "Напиши слово «привет» три раза.",
)
"""Fifty of them: facts, code, lists, a long one, Chinese, emoji and other scripts."""


class Difference(NamedTuple):
    """Where a reply is furthest from the reference's choice. `gap`: between the reference's best logit and the token's."""

    place: int
    gap: float


class Reference:
    """transformers' own model and tokenizer."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.end: int = self.tokenizer.eos_token_id
        self.module: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def prompt(self, *messages: tuple[str, str]) -> list[int]:
        """Return the prompt for messages, each a role and a content."""
        chat = [{"role": role, "content": content} for role, content in messages]
        ids: list[int] = self.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=False
        )
        return ids

    @torch.inference_mode()
    def logits(self, prompt: list[int], reply: list[int]) -> Tensor:
        """Return the logits from which each token of a reply is chosen, (tokens, vocabulary)."""
        ids = torch.tensor([prompt + reply[:-1]])
        rows: Tensor = self.module(ids, logits_to_keep=len(reply), use_cache=False).logits[0]
        return rows.float()

    def difference(self, prompt: list[int], reply: list[int]) -> Difference | None:
        """Return where a greedy reply differs most from what `generate` writes; None if nowhere.

        `generate` takes the likeliest token after the same tokens. So a reply is its reply if that holds for each token.
        """
        rows = self.logits(prompt, reply)
        gaps = rows.amax(dim=1) - rows.gather(1, torch.tensor(reply)[:, None])[:, 0]
        place = int(gaps.argmax())
        return Difference(place, float(gaps[place])) if gaps[place] else None
