"""The sentences that are known, as pairs with the same holes: what is said in English, and the same in Chinese.

A hole is `{name}`, `{city}`, `{colour}`, `{weather}`, `{thing}`, `{job}`, `{food}`, or a number: `{n}` before a measure word (`{few}`: at
most 60), `{a}`, `{b}` and `{c}` elsewhere. Each side is the only translation of the other, so that what is right can be compared letter for letter.
"""

GREETINGS = (
    ("Hello!", "你好！"), ("Hello, {name}!", "你好，{name}！"), ("Good morning!", "早上好！"), ("Good morning, {name}.", "早上好，{name}。"),
    ("Good evening!", "晚上好！"), ("Good evening, {name}.", "晚上好，{name}。"), ("Good night.", "晚安。"), ("Good night, {name}.", "晚安，{name}。"),
    ("Goodbye!", "再见！"), ("Goodbye, {name}!", "再见，{name}！"), ("See you tomorrow.", "明天见。"), ("See you later.", "回头见。"),
    ("Welcome!", "欢迎！"), ("Welcome to {city}!", "欢迎来到{city}！"), ("Thank you.", "谢谢。"), ("Thank you, {name}.", "谢谢你，{name}。"),
    ("Thank you very much.", "非常感谢。"), ("You're welcome.", "不客气。"), ("Nice to meet you.", "很高兴认识你。"),
    ("Nice to meet you, {name}.", "很高兴认识你，{name}。"), ("Sorry.", "对不起。"), ("No problem.", "没问题。"), ("Of course.", "当然。"),
    ("Congratulations!", "恭喜！"), ("Congratulations, {name}!", "恭喜，{name}！"), ("Happy birthday!", "生日快乐！"),
    ("Happy birthday, {name}!", "生日快乐，{name}！"), ("Happy new year!", "新年快乐！"), ("Good luck!", "祝你好运！"), ("Cheers!", "干杯！"),
)  # fmt: skip
NAMES = (
    ("My name is {name}.", "我叫{name}。"), ("What is your name?", "你叫什么名字？"), ("What is my name?", "我叫什么名字？"),
    ("Your name is {name}.", "你叫{name}。"), ("This is {name}.", "这是{name}。"), ("{name} is my friend.", "{name}是我的朋友。"),
    ("Do you know {name}?", "你认识{name}吗？"), ("I don't know {name}.", "我不认识{name}。"), ("Where is {name}?", "{name}在哪里？"),
    ("{name} is here.", "{name}在这里。"), ("{name} is not here.", "{name}不在这里。"), ("{name} and {name} are friends.", "{name}和{name}是朋友。"),
    ("{name} lives in {city}.", "{name}住在{city}。"), ("I live in {city}.", "我住在{city}。"), ("Where do you live?", "你住在哪里？"),
    ("Do you live in {city}?", "你住在{city}吗？"), ("I come from {city}.", "我来自{city}。"), ("{name} comes from {city}.", "{name}来自{city}。"),
    ("Where do you come from?", "你来自哪里？"), ("{name} is a {job}.", "{name}是一名{job}。"), ("I am a {job}.", "我是一名{job}。"),
    ("Are you a {job}?", "你是一名{job}吗？"), ("My mother is a {job}.", "我妈妈是一名{job}。"), ("My father is a {job}.", "我爸爸是一名{job}。"),
    ("Tell {name} that I am here.", "告诉{name}我在这里。"), ("Ask {name}.", "问{name}。"), ("{name} is waiting for {name}.", "{name}在等{name}。"),
    ("I am going to {city} with {name}.", "我和{name}去{city}。"), ("{name} is going to {city} tomorrow.", "{name}明天去{city}。"),
    ("I was in {city} yesterday.", "我昨天在{city}。"),
)  # fmt: skip
NUMBERS = (
    ("{a}.", "{a}。"), ("The number is {a}.", "这个数字是{a}。"), ("Count to {a}.", "数到{a}。"), ("Count from {a} to {b}.", "从{a}数到{b}。"),
    ("{a}, {b}, {c}.", "{a}，{b}，{c}。"), ("The next number is {a}.", "下一个数字是{a}。"), ("I have {n} books.", "我有{n}本书。"),
    ("{name} has {n} books.", "{name}有{n}本书。"), ("There are {n} people here.", "这里有{n}个人。"), ("It costs {n} euros.", "这个要{n}欧元。"),
    ("I have {n} cats.", "我有{n}只猫。"), ("She has {n} dogs.", "她有{n}只狗。"), ("Please wait {n} minutes.", "请等{n}分钟。"),
    ("The room number is {a}.", "房间号是{a}。"), ("I am {few} years old.", "我{few}岁。"), ("{name} is {few} years old.", "{name}{few}岁。"),
    ("We need {n} tickets to {city}.", "我们需要{n}张去{city}的票。"), ("I need {n} {thing}.", "我需要{n}个{thing}。"),
    ("He bought {n} {thing}.", "他买了{n}个{thing}。"), ("There are {n} {thing} on the table.", "桌子上有{n}个{thing}。"),
)  # fmt: skip
SUMS = (
    ("What is {a} plus {b}?", "{a}加{b}等于多少？"), ("What is {a} minus {b}?", "{a}减{b}等于多少？"), ("{a} plus {b} is {c}.", "{a}加{b}等于{c}。"),
    ("{a} minus {b} is {c}.", "{a}减{b}等于{c}。"), ("Is {a} plus {b} {c}?", "{a}加{b}等于{c}吗？"), ("{a} is more than {b}.", "{a}大于{b}。"),
    ("{a} is less than {b}.", "{a}小于{b}。"), ("Add {a} and {b}.", "把{a}和{b}相加。"), ("The sum of {a} and {b} is {c}.", "{a}与{b}的和是{c}。"),
    ("Half of {a} is {b}.", "{a}的一半是{b}。"),
)  # fmt: skip
WEATHER = (
    ("It is {weather} in {city}.", "{city}{weather}。"), ("It is {weather} today.", "今天{weather}。"), ("It was {weather} yesterday.", "昨天{weather}。"),
    ("It will be {weather} tomorrow.", "明天{weather}。"), ("How is the weather in {city}?", "{city}的天气怎么样？"),
    ("How is the weather today?", "今天的天气怎么样？"), ("It is {few} degrees in {city}.", "{city}有{few}度。"),
    ("It is {few} degrees today.", "今天有{few}度。"), ("Will it rain tomorrow?", "明天会下雨吗？"), ("Will it rain in {city}?", "{city}会下雨吗？"),
    ("It is raining in {city}.", "{city}在下雨。"), ("It is snowing in {city}.", "{city}在下雪。"), ("It rained yesterday.", "昨天下雨了。"),
    ("It will snow tomorrow in {city}.", "{city}明天会下雪。"), ("I like rain.", "我喜欢下雨。"), ("I don't like snow.", "我不喜欢下雪。"),
)  # fmt: skip
SMALL_TALK = (
    ("How are you?", "你好吗？"), ("How are you, {name}?", "你好吗，{name}？"), ("I'm fine.", "我很好。"), ("I am tired.", "我累了。"),
    ("I am hungry.", "我饿了。"), ("I don't know.", "我不知道。"), ("I don't understand.", "我不明白。"), ("Please wait a moment.", "请等一下。"),
    ("Where is the toilet?", "洗手间在哪里？"), ("How much is it?", "多少钱？"), ("My favourite colour is {colour}.", "我最喜欢的颜色是{colour}。"),
    ("What is your favourite colour?", "你最喜欢什么颜色？"), ("{name} likes {colour}.", "{name}喜欢{colour}。"), ("I like {food}.", "我喜欢{food}。"),
    ("I don't like {food}.", "我不喜欢{food}。"), ("Do you like {food}?", "你喜欢{food}吗？"), ("{name} likes {food} and {food}.", "{name}喜欢{food}和{food}。"),
    ("I would like {food}, please.", "请给我{food}。"), ("The {food} is very good.", "{food}很好。"), ("This is a {colour} book.", "这是一本{colour}的书。"),
    ("Tell me a story.", "给我讲个故事。"), ("Tell me a story about a {job}.", "给我讲一个{job}的故事。"), ("What did you say last?", "你刚才说了什么？"),
    ("Please say that again.", "请再说一遍。"), ("Please speak slowly.", "请慢慢说。"), ("Stop, please.", "请停下。"), ("Go on.", "继续。"),
    ("I love you.", "我爱你。"), ("I can't answer that.", "我不能回答这个问题。"), ("I am only a small model.", "我只是一个小模型。"),
)  # fmt: skip
SKILLS = {
    "greetings": GREETINGS, "names": NAMES, "numbers": NUMBERS, "sums": SUMS, "weather": WEATHER, "small talk": SMALL_TALK,
}  # fmt: skip

CITIES = {
    "Paris": "巴黎", "London": "伦敦", "Berlin": "柏林", "Tokyo": "东京", "Lima": "利马", "Oslo": "奥斯陆", "Cairo": "开罗", "Rome": "罗马",
    "Madrid": "马德里", "Vienna": "维也纳", "Prague": "布拉格", "Lisbon": "里斯本", "Dublin": "都柏林", "Athens": "雅典", "Warsaw": "华沙",
    "Helsinki": "赫尔辛基", "Stockholm": "斯德哥尔摩", "Amsterdam": "阿姆斯特丹", "Zurich": "苏黎世", "Munich": "慕尼黑", "Hamburg": "汉堡",
    "Milan": "米兰", "Venice": "威尼斯", "Barcelona": "巴塞罗那", "Lyon": "里昂", "Budapest": "布达佩斯", "Istanbul": "伊斯坦布尔",
    "Dubai": "迪拜", "Mumbai": "孟买", "Delhi": "德里", "Beijing": "北京", "Shanghai": "上海", "Shenzhen": "深圳", "Taipei": "台北", "Seoul": "首尔",
    "Osaka": "大阪", "Kyoto": "京都", "Hanoi": "河内", "Bangkok": "曼谷", "Jakarta": "雅加达", "Manila": "马尼拉", "Singapore": "新加坡",
    "Sydney": "悉尼", "Melbourne": "墨尔本", "Nairobi": "内罗毕", "Lagos": "拉各斯", "Toronto": "多伦多", "Montreal": "蒙特利尔",
    "Vancouver": "温哥华", "Boston": "波士顿", "Chicago": "芝加哥", "Seattle": "西雅图", "Denver": "丹佛", "Houston": "休斯敦", "Miami": "迈阿密",
    "New York": "纽约", "San Francisco": "旧金山", "Los Angeles": "洛杉矶", "Buenos Aires": "布宜诺斯艾利斯", "Hong Kong": "香港",
}  # fmt: skip
COLOURS = {
    "red": "红色", "blue": "蓝色", "green": "绿色", "yellow": "黄色", "orange": "橙色", "purple": "紫色", "pink": "粉色", "black": "黑色",
    "white": "白色", "grey": "灰色", "brown": "棕色", "dark blue": "深蓝色", "light green": "浅绿色",
}  # fmt: skip
KINDS_OF_WEATHER = {
    "sunny": "天气晴朗", "cloudy": "多云", "rainy": "有雨", "snowy": "有雪", "windy": "有风", "foggy": "有雾", "hot": "很热", "cold": "很冷",
    "warm": "很暖和", "cool": "很凉快",
}  # fmt: skip
THINGS = {
    "apples": "苹果", "cups": "杯子", "bags": "袋子", "boxes": "盒子", "eggs": "鸡蛋", "plates": "盘子", "phones": "手机", "clocks": "时钟",
    "oranges": "橙子", "bottles": "瓶子",
}  # fmt: skip
JOBS = {
    "teacher": "老师", "student": "学生", "doctor": "医生", "cook": "厨师", "driver": "司机", "singer": "歌手", "writer": "作家", "farmer": "农民",
    "painter": "画家", "nurse": "护士",
}  # fmt: skip
FOODS = {
    "tea": "茶", "coffee": "咖啡", "rice": "米饭", "bread": "面包", "fish": "鱼", "soup": "汤", "fruit": "水果", "water": "水", "milk": "牛奶",
    "cake": "蛋糕", "noodles": "面条", "ice cream": "冰淇淋",
}  # fmt: skip
WORDS = {
    "city": CITIES, "colour": COLOURS, "weather": KINDS_OF_WEATHER, "thing": THINGS, "job": JOBS, "food": FOODS,
}  # fmt: skip
