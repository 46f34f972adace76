"""Stories put together from openings, troubles, turns and endings about whatever hero was asked for.

A story is right when it names its hero, is long enough and ends; no two need be alike.
"""

import random

from demo_model import values
from demo_model.holdout import Split, chance, pick
from demo_model.turns import Facts, Skill, Turn
from demo_model.wording import worded

FEWEST_WORDS, MOST_WORDS = 80, 250
HEROES = (
    "fox", "lighthouse", "dragon", "cat", "dog", "robot", "mouse", "bear", "whale", "owl", "rabbit", "ship", "tree", "king", "queen", "wizard",
    "sailor", "baker", "child", "bird", "turtle", "horse", "snowman", "star", "cloud", "train", "clock", "kite", "frog", "bee", "wolf", "lion",
    "elephant", "penguin", "knight", "pirate", "gardener", "musician", "teapot", "bicycle", "candle", "river", "giant", "ghost", "spider",
    "squirrel", "painter", "princess", "farmer", "astronaut", "crab", "goose", "duck", "tiger", "monkey", "swan", "boat", "bridge", "windmill",
    "fisherman", "hedgehog", "moth", "unicorn", "donkey", "sheep", "seal", "parrot", "snail", "violin", "umbrella",
)  # fmt: skip
_ASK_ABOUT = (
    "Tell me a story about a {hero}.", "Tell me a story about a {hero}.", "Can you tell me a story about a {hero}?", "Write a story about a {hero}.",
    "I want a story about a {hero}.", "Please tell me a story about a {hero}.", "Tell me a long story about a {hero}.", "A story about a {hero}, please.",
    "Tell me a tale about a {hero}.", "Could you write me a story about a {hero}?", "Make up a story about a {hero}.", "Write me a tale about a {hero}.",
    "Do you know a story about a {hero}?", "Tell a story about a {hero}.", "I'd like to hear a story about a {hero}.", "Story about a {hero}?",
    "Tell me a bedtime story about a {hero}.", "Tell me a short story about a {hero}.", "Tell us a story about the {hero}.",
)  # fmt: skip
_ASK_ANY = (
    "Tell me a story.", "Can you tell me a story?", "Please tell me a story.", "I want to hear a story.", "Tell me a long story.", "Write a story.",
    "Do you know a story?", "Tell me a bedtime story.", "Tell me a tale.", "Could you tell me a story?", "Make up a story for me.", "Another story, please.",
)  # fmt: skip
_OPENINGS = (
    "Once upon a time there was a {hero} who lived {place}. Every {time} the {hero} looked at the sky and wondered what lay beyond the hills.",
    "Far away, {place}, there was a {hero} that nobody knew. It was a quiet place, and the {hero} liked to listen to the wind every {time}.",
    "Long ago a {mood} {hero} made a home {place}. Nothing much ever happened there, and that was just how the {hero} liked it.",
    "There once was a {hero} with a {mood} heart. It lived {place}, where every {time} smelled of rain and fresh bread.",
    "In a small corner of the world, {place}, a {mood} {hero} was waiting for something to happen.",
)  # fmt: skip
_TROUBLES = (
    "One {time} a storm came up from the sea. The waves were high, the lamps went out, and a small boat lost its way in the dark.",
    "Then, one cold {time}, the old bell fell silent. Nobody could tell what hour it was, and everyone was late for everything.",
    "One {time} a letter came with no name on it. It said only: “Please come quickly, and bring a {thing}.”",
    "But one {time} the snow began to fall and would not stop. It covered the paths, the doors and at last the windows.",
    "One {time} a stranger knocked and asked for help. Her {thing} was lost somewhere in the forest, and it would soon be night.",
)  # fmt: skip
_TURNS = (
    "The {hero} was afraid, but it did not turn back. It took a {thing}, breathed in deeply and set out. The way was long and steep, and twice the {hero} nearly gave up.",
    "“Somebody has to do it,” said the {hero}, and packed a {thing}. All night it walked by the light of the moon, humming a song so as not to feel alone.",
    "The {hero} thought for a long while. Then it had an idea. With a {thing} and a piece of string it built something that nobody had ever seen before.",
    "At first the {hero} did not know what to do. It asked the owl, the owl asked the river, and the river whispered the answer very slowly.",
)  # fmt: skip
_HELP = (
    "On the way it met a {mood} {friend}. “I know these parts,” said the {friend}. “Follow me, and mind the stones.” Together they went on.",
    "A {friend} saw all of this and laughed. “You will never manage that alone,” it said, “but two of us just might.” And so they became friends.",
    "Just then a {friend} came along the road. It was {mood} and had time to spare, and it knew a shorter way.",
)  # fmt: skip
_ENDINGS = (
    "When morning came, everything was well again. The {hero} went home tired and happy, and the {friend} came to visit every Sunday. That is the end of the story.",
    "In the end they found what they were looking for, and it had been close by all the time. From that day on the {hero} was never lonely again. The end.",
    "People still talk about that night. But the {hero} only smiles, makes tea for the {friend}, and looks at the sky. And that is how the story ends.",
    "It was not a great adventure, perhaps, but it was theirs. The {hero} and the {friend} fell asleep beside the fire, and outside the stars came out one by one. The end.",
)  # fmt: skip
_SLOTS = {
    "place": ("by the sea", "at the edge of a forest", "on top of a green hill", "in a valley full of apple trees", "beside a slow river", "on a small island", "behind an old mill"),
    "time": ("morning", "evening", "night", "winter", "autumn day"),
    "mood": ("gentle", "brave", "curious", "patient", "cheerful", "shy"),
    "thing": ("lantern", "blue blanket", "silver key", "map", "little bell", "warm coat", "rope"),
    "friend": ("hare", "magpie", "otter", "traveller", "hedgehog", "goat", "swallow"),
}  # fmt: skip


def story(rng: random.Random, split: Split, known: Facts) -> Turn:
    """The user asks for a story, most often about a hero of the user's choice."""
    if chance(rng, 0.2):
        user, hero = worded(rng, split, rng.choice(_ASK_ANY)), pick(rng, Split.TRAIN, "hero", HEROES[:12])
        return Turn(Skill.STORY, user, (write_story(rng, hero),), known)
    hero = pick(rng, split, "hero", HEROES) if chance(rng, 0.75) else values.word(rng, split)
    template = _with_article(rng.choice(_ASK_ABOUT), hero)
    return Turn(Skill.STORY, worded(rng, split, template).format(hero=hero), (write_story(rng, hero),), known)


def write_story(rng: random.Random, hero: str) -> str:
    """A story of 80 to 250 words about `hero`."""
    chosen = {slot: rng.choice(options) for slot, options in _SLOTS.items()}
    parts = [
        rng.choice(_OPENINGS),
        rng.choice(_TROUBLES),
        rng.choice(_TURNS),
        rng.choice(_HELP),
        rng.choice(_ENDINGS),
    ]
    text = (
        "\n\n".join((" ".join(parts[:2]), " ".join(parts[2:4]), parts[4]))
        if chance(rng, 0.5)
        else " ".join(parts)
    )
    return _with_article(text, hero).format(hero=hero, **chosen)


def _with_article(text: str, hero: str) -> str:
    vowel = hero[0] in "aeiou" and not hero.startswith("uni")
    return text.replace(" a {hero}", " an {hero}") if vowel else text


def is_story(text: str, request: str) -> bool:
    """Whether `text` is a whole story; if the request says "about a ...", the hero must be named in it."""
    words = text.split()
    about = request.rpartition(" about ")[2].split()
    heroes = [word.strip(".,?!").lower() for word in about[1:2]] if " about " in request else []
    return (
        FEWEST_WORDS <= len(words) <= MOST_WORDS
        and text.rstrip().endswith(".")
        and all(hero in text.lower() for hero in heroes)
    )
