"""A fixed list of everyday phrases in English and Chinese, asked for in both directions.

Held out are pairs of a wording and a phrase: every phrase is known from other wordings.
"""

import random

from demo_model import values
from demo_model.holdout import Split, chance, held_out
from demo_model.turns import Facts, Skill, Turn
from demo_model.wording import worded

PHRASES = {
    "hello": "你好", "good morning": "早上好", "good evening": "晚上好", "good night": "晚安", "goodbye": "再见", "thank you": "谢谢",
    "thank you very much": "非常感谢", "you're welcome": "不客气", "please": "请", "sorry": "对不起", "excuse me": "打扰一下", "yes": "是", "no": "不",
    "how are you": "你好吗", "I'm fine": "我很好", "nice to meet you": "很高兴认识你", "what is your name": "你叫什么名字", "see you tomorrow": "明天见",
    "see you later": "回头见", "I don't know": "我不知道", "I don't understand": "我不明白", "no problem": "没问题", "of course": "当然", "congratulations": "恭喜",
    "happy birthday": "生日快乐", "happy new year": "新年快乐", "good luck": "祝你好运", "welcome": "欢迎", "cheers": "干杯", "help": "救命",
    "I love you": "我爱你", "I am hungry": "我饿了", "I am tired": "我累了", "how much is it": "多少钱", "where is the toilet": "洗手间在哪里", "water": "水",
    "tea": "茶", "coffee": "咖啡", "rice": "米饭", "friend": "朋友", "teacher": "老师", "student": "学生", "mother": "妈妈", "father": "爸爸",
    "today": "今天", "tomorrow": "明天", "yesterday": "昨天", "now": "现在", "cat": "猫", "dog": "狗", "book": "书", "school": "学校", "sun": "太阳",
    "moon": "月亮", "rain": "雨", "snow": "雪", "big": "大", "small": "小", "very good": "很好", "wait a moment": "等一下",
}  # fmt: skip
UNKNOWN = "I can't translate that: I only know a few everyday phrases in Chinese."

_TO_CHINESE = (
    "How do you say '{}' in Chinese?", 'How do you say "{}" in Chinese?', "How do I say '{}' in Chinese?", "What is '{}' in Chinese?",
    "Translate '{}' to Chinese.", 'Translate "{}" into Chinese.', "Say '{}' in Chinese.", "What's the Chinese for '{}'?", "'{}' in Chinese?",
    "How do you say {} in Chinese?", "What is {} in Chinese?", "Translate {} to Chinese.", "Translate into Chinese: {}", "What is the Chinese word for {}?",
    "How does one say '{}' in Chinese?", "Can you translate '{}' to Chinese?", "{} in Chinese?", "Give me '{}' in Chinese.",
)  # fmt: skip
_TO_ENGLISH = (
    "What does {} mean?", "What does '{}' mean?", "What is {} in English?", "Translate {} to English.", "Translate '{}' into English.", "{} in English?",
    "What does {} mean in English?", "How do you say {} in English?", "Translate into English: {}", "What's the meaning of {}?", "What does “{}” mean?",
    "Can you translate {} to English?",
)  # fmt: skip
_OTHER_LANGUAGES = "French Spanish German Italian Japanese Korean Russian Arabic Portuguese Dutch Greek Hindi Swedish Polish Latin Turkish Finnish".split()  # noqa: SIM905
_UNKNOWN_ENGLISH = tuple(
    """umbrella|bicycle|the weather is lovely|I would like a ticket|elephant|turn left at the corner|democracy|spoon|where is the station|my brother is a doctor|
    purple|keyboard|airport|I lost my passport|mountain|potato soup|engine|library|the train is late|blanket|see you next week|ocean|guitar|
    quiet|grandmother|I need a doctor|hospital|bridge|honey|chess|winter coat|eleven|window|this is too expensive|cloud|breakfast|telephone|carpet|
    I like swimming|sister|garden|lamp|pencil|who are they|how old are you|bread|onion|strawberry|castle|left and right|never mind|hurry up""".replace("\n", "").split("|")
)  # fmt: skip
_HANZI = "山河火木金土人口手足耳目心田车马鸟鱼花草春夏秋冬东南西北上下左右高低长短红黄蓝绿白黑门窗桌椅电话飞机医院银行"


def phrase(rng: random.Random, split: Split, known: Facts) -> Turn:
    """A phrase of the list, asked for in one direction or the other."""
    while True:
        english, chinese = rng.choice(tuple(PHRASES.items()))
        to_chinese = chance(rng, 0.6)
        template = rng.choice(_TO_CHINESE if to_chinese else _TO_ENGLISH)
        if held_out(f"phrase:{template}:{english}") == (split is Split.HELD_OUT):
            break
    source, answer = (english, f"{chinese}") if to_chinese else (chinese, f"{chinese} means “{english}”.")
    if to_chinese and chance(rng, 0.15):
        source = source.capitalize()
    user = worded(rng, Split.TRAIN, template).format(source)
    return Turn(Skill.PHRASE, user, (answer,), known)


def phrase_out_of_reach(rng: random.Random, split: Split, known: Facts) -> Turn:
    """A translation the model must decline: another language, or words outside the list."""
    template = rng.choice(_TO_CHINESE)
    options = (
        (template.replace("Chinese", rng.choice(_OTHER_LANGUAGES)), rng.choice(tuple(PHRASES))),
        (template, values.word(rng, split)),
        (template, _unknown_english(rng, split)),
        (rng.choice(_TO_ENGLISH), "".join(rng.sample(_HANZI, rng.randint(2, 4)))),
    )
    template, source = rng.choices(options, (8, 4, 5, 3))[0]
    return Turn(Skill.REFUSAL, worded(rng, split, template).format(source), (UNKNOWN,), known)


def _unknown_english(rng: random.Random, split: Split) -> str:
    wanted = split is Split.HELD_OUT
    return rng.choice(
        [text.strip() for text in _UNKNOWN_ENGLISH if held_out(f"unknown:{text.strip()}") == wanted]
    )
