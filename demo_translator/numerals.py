"""Whole numbers from 0 to 999 in words of both languages. Pure."""

_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905
_DIGITS = "零一二三四五六七八九"
LARGEST = 999


def english(number: int) -> str:
    """Return a number in English words: 412 is "four hundred and twelve"."""
    if number < len(_ONES):
        return _ONES[number]
    if number < 100:  # noqa: PLR2004 - the language's own
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{_ONES[hundreds]} hundred" + (f" and {english(rest)}" if rest else "")


def chinese(number: int) -> str:
    """Return a number in Chinese characters: 412 is 四百一十二."""
    if number < 20:  # noqa: PLR2004 - the language's own
        return _below_twenty(number)
    if number < 100:  # noqa: PLR2004 - as above
        tens, ones = divmod(number, 10)
        return f"{_DIGITS[tens]}十" + (_DIGITS[ones] if ones else "")
    hundreds, rest = divmod(number, 100)
    head = f"{_DIGITS[hundreds]}百"
    if not rest:
        return head
    if rest < 10:  # noqa: PLR2004 - as above
        return f"{head}零{_DIGITS[rest]}"
    return head + ("一" if rest < 20 else "") + chinese(rest)  # noqa: PLR2004 - as above


def chinese_quantity(number: int) -> str:
    """Return a number before a measure word: there 2 is 两."""
    return "两" if number == 2 else chinese(number)  # noqa: PLR2004 - as above


def _below_twenty(number: int) -> str:
    if number < 10:  # noqa: PLR2004 - as above
        return _DIGITS[number]
    return "十" + (_DIGITS[number - 10] if number > 10 else "")  # noqa: PLR2004 - as above
