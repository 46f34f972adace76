"""Names, cities, colours and words to fill dialogues with; most are invented, so that the model learns to copy.

Every value is drawn through the hold-out.
"""

import random

from demo_model.holdout import Split, chance, draw, pick

FIRST_NAMES = tuple(
    """Ada Adam Aisha Alan Alex Alice Ali Amara Amir Amy Ana Anders Andrea Anika Anna Anton Ari Arjun Astrid Ava Ayse Bao Beatriz Ben Bianca
    Bjorn Boris Bruno Camila Carla Carlos Carmen Cecilia Chen Chiara Chloe Clara Claire Cleo Dan Dana Daniel Daria David Deepa Diego Dina
    Dmitri Dora Edith Elena Eli Elif Ella Elsa Emil Emily Emma Eric Esther Eva Fabio Farid Fatima Felix Finn Fiona Flora Frank Freya
    Gabriel George Gita Grace Greta Gus Hana Hannah Hans Harry Hassan Heidi Helen Henry Hiro Hugo Ian Ibrahim Ida Ines Ingrid Irene Iris
    Isaac Isla Ivan Ivy Jack Jakob James Jamal Jan Jane Jasmine Javier Jim Jin Joe Joan Johan John Jonas Jorge Jose Julia June Kai Karen
    Karim Kate Kenji Kim Kira Klaus Kofi Kumar Lara Lars Laura Lea Leila Lena Leo Leon Li Liam Lily Lin Linda Lisa Liv Lola Lucas Lucia
    Lucy Luis Luna Maja Marco Maria Marie Mark Marta Martin Mary Mateo Max Maya Mei Mia Milan Mina Miriam Mohamed Mona Nadia Naomi Nia
    Nico Nina Noah Noor Nora Olaf Oleg Olga Oliver Olivia Omar Oscar Otto Pablo Paul Pavel Pedro Petra Peter Pia Priya Rafael Rahul Raj
    Rania Rebecca Rita Robert Robin Rosa Rose Rosalind Ruth Ryan Sam Samira Sandra Sana Sara Sasha Sean Selma Simon Sofia Sophie Stefan
    Sven Tara Tariq Theo Thomas Tim Tina Tom Tomas Uma Ursula Vera Victor Viktor Wei Will Yara Yasmin Yuki Yusuf Zara Zoe Zofia""".split()  # noqa: SIM905
)  # fmt: skip
CITIES = (
    *"""Paris London Berlin Tokyo Lima Oslo Cairo Rome Madrid Vienna Prague Lisbon Dublin Athens Warsaw Helsinki Stockholm Copenhagen
    Amsterdam Brussels Zurich Geneva Munich Hamburg Milan Naples Venice Turin Florence Barcelona Seville Porto Lyon Nice Budapest Sofia
    Bucharest Belgrade Zagreb Riga Vilnius Tallinn Kyiv Istanbul Ankara Tehran Baghdad Dubai Doha Mumbai Delhi Chennai Dhaka Karachi
    Lahore Kabul Beijing Shanghai Shenzhen Taipei Seoul Busan Osaka Kyoto Hanoi Bangkok Jakarta Manila Singapore Sydney Melbourne Perth
    Auckland Nairobi Lagos Accra Dakar Tunis Rabat Algiers Kampala Lusaka Harare Durban Toronto Montreal Vancouver Ottawa Boston Chicago
    Seattle Denver Dallas Houston Austin Atlanta Miami Portland Phoenix Detroit Havana Bogota Quito Santiago Montevideo Leeds Bristol
    Glasgow Cardiff Bergen Aarhus Malmo Tampere Gdansk Krakow Ghent Utrecht Basel Graz Salzburg Leipzig Dresden Cologne Bordeaux Toulouse
    Bilbao Valencia Palermo Izmir Tbilisi Yerevan Baku Almaty""".split(),  # noqa: SIM905
    "New York", "San Francisco", "Los Angeles", "Buenos Aires", "Mexico City", "Cape Town", "Hong Kong", "Tel Aviv", "Kuala Lumpur",
    "New Delhi", "Sao Paulo", "Addis Ababa", "Abu Dhabi", "Las Vegas", "San Diego", "Santa Cruz", "Port Louis", "Ho Chi Minh City",
)  # fmt: skip
COLOURS = tuple(
    """red blue green yellow orange purple pink black white grey gray brown violet turquoise teal silver gold beige navy crimson scarlet
    maroon magenta cyan indigo lilac lavender olive coral salmon peach mint emerald amber ivory khaki rust copper ruby sapphire cobalt
    mustard burgundy plum charcoal bronze fuchsia jade lemon lime aqua apricot mauve ochre tan cream""".split()  # noqa: SIM905
)  # fmt: skip
WORDS = tuple(
    """apple river stone window garden music paper candle forest bridge market bottle silver letter summer winter rocket pencil island
    mountain thunder velvet marble ribbon shadow basket harbour meadow lantern copper whisper pillow saddle button ladder carpet kettle
    blanket hammer feather pepper cotton ginger walnut cherry orange planet comet tunnel engine wagon anchor compass table chair spoon
    green quick brown lazy happy little gentle brave clever quiet loud early late warm cold soft bright dark jump run sing dance read
    write open close begin follow carry borrow whistle gather wander and the a of with under over near beside never always maybe""".split()  # noqa: SIM905
)  # fmt: skip
_ONSETS = "b c d f g h j k l m n p r s t v w y z br ch dr fl gr kl kr pr qu sh sk st th tr".split()  # noqa: SIM905
_VOWELS = "a e i o u a e i o ai ea ia ie oa oo ou".split()  # noqa: SIM905
_CODAS = "l m n r s t k x p d g f ft lt st nd rt ck ng sh ss mp lk wn ll rm ch th tch ght een er ing".split()  # noqa: SIM905
_LETTERS = "abcdefghijklmnopqrstuvwxyzaeiouaeiou"


def name(rng: random.Random, split: Split) -> str:
    """A first name: a common one or an invented one, now and then in small letters or double-barrelled."""

    def make() -> str:
        common = rng.choice(FIRST_NAMES)
        double = f"{invented(rng, 1, 2).capitalize()}-{invented(rng, 1, 2).capitalize()}"
        return rng.choices((common, double, invented(rng, 1, 4).capitalize()), (7, 1, 12))[0]

    drawn = draw(split, "name", make)
    return drawn.lower() if chance(rng, 0.08) else drawn


def city(rng: random.Random, split: Split) -> str:
    """A city: a real one two times in three."""
    if chance(rng, 0.65):
        return pick(rng, split, "city", CITIES)
    return draw(split, "city", lambda: invented(rng, 2, 4).capitalize())


def colour(rng: random.Random, split: Split) -> str:
    """A colour, now and then a shade of it or an invented one."""
    if chance(rng, 0.15):
        return draw(split, "colour", lambda: invented(rng, 2, 3))
    plain = pick(rng, split, "colour", COLOURS)
    return (
        f"{rng.choice(('dark', 'light', 'pale', 'bright', 'deep'))} {plain}" if chance(rng, 0.15) else plain
    )


def word(rng: random.Random, split: Split) -> str:
    """A word to repeat or to ask about; half of them are no word of any language."""
    if chance(rng, 0.5):
        return pick(rng, split, "word", WORDS)
    return draw(split, "word", lambda: invented(rng, 1, 3))


def invented(rng: random.Random, fewest: int, most: int) -> str:
    """A word that does not exist: of `fewest` to `most` syllables, of the halves of two words, or of any letters."""
    kinds = (
        _of_syllables(rng, rng.randint(fewest, most)),
        _of_halves(rng),
        "".join(rng.choices(_LETTERS, k=rng.randint(2, 3 * most))),
    )
    return rng.choices(kinds, (11, 7, 2))[0]


def _of_syllables(rng: random.Random, syllables: int) -> str:
    parts = (
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + (rng.choice(_CODAS) if chance(rng, 0.5) else "")
        for _ in range(syllables)
    )
    text = "".join(parts)
    return text[1:] if syllables > 1 and chance(rng, 0.15) and text[1] in "aeiou" else text


def _of_halves(rng: random.Random) -> str:
    first, last = (pick(rng, Split.TRAIN, "word", WORDS) for _ in range(2))
    return first[: rng.randint(1, len(first))] + last[rng.randrange(len(last)) :]
